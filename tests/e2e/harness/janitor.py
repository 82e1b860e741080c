"""Cleans up after a pytest that was killed: python janitor.py TOKEN FOLDER

Reads its standard input until the end, which comes when pytest is gone. If FOLDER is still there then,
kills every process that carries TOKEN in its environment or command line, removes the cgroups of the jobs that
have a log folder below FOLDER, with what still lives in them, and FOLDER.
"""

import os
import shutil
import signal
import sys

import cgroups

ROUNDS = 200  # a process may fork while it is being killed; each round takes some milliseconds


def carriers(token):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = token in file.read()
            with open(f"/proc/{name}/cmdline", "rb") as file:
                marked = marked or token in file.read()
        except OSError:
            continue
        if marked:
            yield int(name)


def main():
    token, folder = sys.argv[1].encode(), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    if not os.path.exists(folder):
        return
    for _ in range(ROUNDS):
        found = list(carriers(token))
        if not found:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    # Shims and guards were killed with the rest, so nobody else removes these.
    cgroups.remove(cgroups.cgroups(cgroups.job_ids(folder)))
    shutil.rmtree(folder, ignore_errors=True)


main()
