"""The cgroups that dgxrun made for jobs: found by the jobs' ids, which are the names of their log folders.

Needs the standard library only: janitor.py, which runs by itself, uses it too.
"""

import os
import re
import signal
import time

CGROUP_ROOT = "/sys/fs/cgroup"
REMOVE_S = 10  # for the kernel to take apart what was killed, on a loaded machine
STEP_S = 0.02

_JOB_ID = re.compile(r"[0-9a-f]{6}-[0-9]+")


def job_ids(folder):
    """Ids of all jobs that ran with their files below this folder: their log folders stay."""
    found = set()
    for _, names, _ in os.walk(folder):
        found.update(name for name in names if _JOB_ID.fullmatch(name))
    return found


def cgroups(jobs):
    """The cgroups that dgxrun made for these jobs."""
    found = set()
    for folder, names, _ in os.walk(CGROUP_ROOT):
        for name in names:
            if name.startswith("dgxrun-") and name.removeprefix("dgxrun-").split(".")[0] in jobs:
                found.add(os.path.join(folder, name))
    return found


def remove(paths):
    """Kills what is in these cgroups and removes them; what cannot be removed in time stays."""
    left, deadline = set(paths), time.monotonic() + REMOVE_S
    while left and time.monotonic() < deadline:
        for top in list(left):
            for folder, _, _ in os.walk(top, topdown=False):
                _kill_and_remove(folder)
            if not os.path.exists(top):
                left.remove(top)
        if left:
            time.sleep(STEP_S)


def _kill_and_remove(folder):
    try:
        with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
            members = [int(line) for line in file]
    except OSError:
        return
    for pid in members:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.rmdir(folder)
    except OSError:
        pass  # not empty yet
