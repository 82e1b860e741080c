"""The optional helper of a training script that dgxrun runs. Pure Python, no dependency.

    import dgxrun
    for step, batch in enumerate(loader, start=first):
        ...
        dgxrun.step(step)

Under any other launcher every call does nothing.
"""

import os

__all__ = ["step"]

_WIDTH = 20  # decimal digits of 64 bits with a sign: a later, shorter number covers an earlier, longer one
_fd = None  # None: not opened yet; -1: there is no file, or it cannot be written
_first = 0


def step(n):
    """Says that this rank has reached step `n` (an integer, counted as the checkpoints count).

    Shown by `dgxrun status`, and used to notice a training that began anew instead of resuming, or ended too
    early. Costs one write of 42 bytes to a file in memory; never raises for what the system does.
    """
    global _fd, _first
    n = int(n)
    if _fd is None:
        _first = n
        try:
            _fd = os.open(os.environ["DGXRUN_PROGRESS_FILE"], os.O_WRONLY | os.O_CLOEXEC)
        except (KeyError, OSError):
            _fd = -1
    if _fd < 0:
        return
    try:
        os.pwrite(_fd, b"%-*d %-*d\n" % (_WIDTH, n, _WIDTH, _first), 0)
    except OSError:
        _fd = -1
