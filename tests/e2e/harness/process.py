"""Processes as /proc shows them, and the processes that a test starts.

pytest makes itself a subreaper (conftest.py), so whatever a test starts stays below it in the tree, also
after double forks and setsid: "nothing is left" means that nothing is left below pytest.
"""

import ctypes
import dataclasses
import os
import re
import signal
import subprocess

from harness.waiting import wait_until

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper():
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent():
    """For preexec_fn: the kernel kills the child when pytest dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Process:
    """One process, told from a later one with the same number by its start time."""

    pid: int
    start: int

    def alive(self):
        found = stat(self.pid)
        return found is not None and found["start"] == self.start and found["state"] not in "ZX"


def stat(pid):
    """state, ppid, session, start of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()
    return {
        "name": text[text.index("(") + 1 : text.rindex(")")],
        "state": rest[0],
        "ppid": int(rest[1]),
        "session": int(rest[3]),
        "start": int(rest[19]),
    }


def process(pid):
    found = stat(pid)
    assert found is not None, f"process {pid} is gone"
    return Process(pid, found["start"])


def parent(child):
    found = stat(child.pid)
    assert found is not None, f"process {child.pid} is gone"
    return process(found["ppid"])


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except (FileNotFoundError, ProcessLookupError):
        return []


def executable(pid):
    """Base name of the running program; empty for what may not be looked at or is gone."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    except OSError:
        return ""


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid=None):
    """All living processes below `pid` (default: below pytest); zombies are no processes any more."""
    found, todo = [], children(pid or os.getpid())
    while todo:
        one = todo.pop()
        todo += children(one)
        facts = stat(one)
        if facts and facts["state"] not in "ZX":
            found.append(Process(one, facts["start"]))
    return found


def describe(processes):
    lines = []
    for one in processes:
        facts = stat(one.pid)
        if facts:
            lines.append(f"{one.pid} ({facts['state']}, parent {facts['ppid']}): {' '.join(cmdline(one.pid))[:200]}")
    return "; ".join(lines)


def reap_strays(known):
    """Reaps zombies that came to pytest as their subreaper. `known`: pids that Popen objects wait for."""
    for pid in children(os.getpid()):
        facts = stat(pid)
        if pid not in known and facts and facts["state"] == "Z":
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def wait_gone(processes, seconds):
    """Waits until none of the processes lives."""
    wait_until(
        lambda: not any(one.alive() for one in processes),
        seconds,
        lambda: "still there: " + describe([one for one in processes if one.alive()]),
    )


class Running:
    """A program that a test started; its output goes to two files, which are read as they grow."""

    def __init__(self, argv, *, env, cwd, out_dir, name, stdin=subprocess.DEVNULL):
        self.argv = argv
        self.stdout_path = os.path.join(out_dir, f"{name}.stdout")
        self.stderr_path = os.path.join(out_dir, f"{name}.stderr")
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            self.popen = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=stdin, stdout=out, stderr=err, preexec_fn=die_with_parent
            )
        self.process = process(self.popen.pid)

    @property
    def pid(self):
        return self.popen.pid

    @property
    def stdout(self):
        with open(self.stdout_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def stderr(self):
        with open(self.stderr_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def transcript(self):
        return f"$ {' '.join(self.argv)}\nstdout:\n{self.stdout[-4000:]}\nstderr:\n{self.stderr[-4000:]}"

    def wait_line(self, pattern, seconds, stream="stdout"):
        """Waits for a line that the regular expression finds; returns the match."""
        regex = re.compile(pattern, re.MULTILINE)

        def look():
            found = regex.search(getattr(self, stream))
            if not found and self.popen.poll() is not None:
                found = regex.search(getattr(self, stream))
                assert found, f"ended with {self.popen.returncode} before {pattern!r}\n{self.transcript()}"
            return found

        return wait_until(look, seconds, lambda: f"{pattern!r} in\n{self.transcript()}")

    def signal(self, number):
        self.popen.send_signal(number)

    def wait(self, seconds):
        """Its exit code (negative: killed by that signal)."""
        try:
            return self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s\n{self.transcript()}") from None

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
