"""Each thing of a newer kernel that dgxrun uses where it is there has a fallback. Here each of them is taken away,
alone and all together, and whole jobs run: success, failure and restart, stop, SIGKILL of shim and guard.

docs/testing.md has the table: what, since which kernel, what is done without it.
"""

import os
import re
import signal
import sys

import pytest

from harness.modes import DevMode, LocalMode, ancestry
from harness.process import stat
from harness.upgrade import built_tests
from harness.workspace import REPOSITORY
from test_nothing_left import Job

RUN = os.path.join(REPOSITORY, "tests", "e2e", "old_kernel", "run.py")
CALLS = ["pidfd_send_signal", "pidfd_open", "clone3", "close_range", "openat2", "faccessat2"]


class Kernel:
    """What is missing. cgroup: what ranks must then be held by, as `dgxrun nodes` says it (None: not looked at)."""

    def __init__(self, deny=(), hide=(), no_v2=False, no_cgroup=False, cgroup=None):
        self.deny, self.hide, self.no_v2, self.no_cgroup, self.cgroup = deny, hide, no_v2, no_cgroup, cgroup

    def argv(self, *command, cwd=None):
        """As netns.Host has it: how a command is run there."""
        words = [sys.executable, RUN]
        for name in self.deny:
            words += ["--deny", name]
        for ending in self.hide:
            words += ["--hide", ending, "--library", self.library]
        return [*words, *(["--no-v2"] if self.no_v2 else []), "--", *command]

    def set_up(self, workspace):
        workspace.host = self
        self.library = os.path.join(built_tests(workspace), "libhide_files.so")
        if self.no_cgroup:
            workspace.env["DGXRUN_NO_CGROUP"] = "1"


KERNELS = {
    **{name: Kernel(deny=[name]) for name in CALLS},
    "all-calls": Kernel(deny=CALLS),
    "no-cgroup.kill": Kernel(hide=["/cgroup.kill"], cgroup="v2"),
    "cgroup-v1": Kernel(no_v2=True, cgroup="v1"),
    "no-children-file": Kernel(hide=["/children"], no_cgroup=True, cgroup="none"),
    "4.18": Kernel(deny=CALLS, hide=["/cgroup.kill"], no_v2=True, cgroup="v1"),
    "4.18-without-cgroups": Kernel(deny=CALLS, hide=["/cgroup.kill", "/children"], no_cgroup=True, cgroup="none"),
}
NEEDS_ROOT = {name for name, kernel in KERNELS.items() if kernel.no_v2 or kernel.hide}
# Each alone where every program of ours takes part; all together also in one process.
CASES = [("dev", name) for name in KERNELS] + [("local", name) for name in KERNELS if name in ("all-calls", "4.18", "4.18-without-cgroups")]
EACH_KERNEL = pytest.mark.parametrize(
    ("mode", "kernel"),
    [
        pytest.param(mode, KERNELS[name], id=f"{mode}-{name}", marks=[pytest.mark.root] if name in NEEDS_ROOT else [])
        for mode, name in CASES
    ],
    indirect=["mode"],
)


@pytest.fixture
def mode(request, workspace, leaks, kernel):
    kernel.set_up(workspace)
    made = {"local": LocalMode, "dev": DevMode}[request.param](workspace)
    yield made
    made.close()


def holds_a_pidfd(process):
    links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    return any("pidfd" in link for link in links)


def check_in_force(mode, kernel, job):
    """The job is really held by the fallback."""
    shim, _, _ = ancestry(job.rank_pids[0])
    with open(f"/proc/{shim.pid}/status", encoding="ascii") as file:
        filters = re.search(r"^Seccomp:\s+(\d)", file.read(), re.MULTILINE).group(1)
    assert (filters == "2") == bool(kernel.deny)
    assert holds_a_pidfd(shim) == ("pidfd_open" not in kernel.deny)
    with open(f"/proc/{shim.pid}/maps", encoding="ascii") as file:
        assert ("libhide_files" in file.read()) == bool(kernel.hide)
    if kernel.cgroup and mode.name == "dev":
        assert {node["cgroup"] for node in mode.workspace.json("nodes")} == {kernel.cgroup}


@EACH_KERNEL
def test_a_rank_fails_and_the_job_is_restarted(mode, kernel):
    workspace = mode.workspace
    program = workspace.write(
        "once.py",
        "import os, sys\n"
        "attempt, rank = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK']\n"
        "print('attempt', attempt, 'sees', sorted(map(int, os.listdir('/proc/self/fd')))[:4])\n"
        "if attempt == '0' and rank == '1': sys.exit(3)\n",
    )
    done = workspace.run(*mode.launch_args(2), "--name", "once", "--grace", "2s", program)
    assert re.search(r"rank 1 on \S+ exited with code 3; restart 1 of 3", done.stderr), done.transcript()
    # A rank has 0, 1, 2 and the descriptor of its own look: nothing was inherited.
    assert done.stdout.count("attempt 1 sees [0, 1, 2, 3]") == 2, done.transcript()
    assert workspace.status("once")["state"] == "succeeded"


@EACH_KERNEL
def test_a_stubborn_job_is_stopped(mode, kernel, leaks):
    job = Job(mode, leaks, "wait")
    check_in_force(mode, kernel, job)
    mode.workspace.run("stop", "stubborn")
    job.check_gone(143)


@EACH_KERNEL
@pytest.mark.parametrize("victim", ["shim", "guard"])
def test_a_supervisor_is_killed(mode, kernel, leaks, victim):
    job = Job(mode, leaks, "wait")
    shim, guard, _ = ancestry(job.rank_pids[1])
    os.kill({"shim": shim, "guard": guard}[victim].pid, signal.SIGKILL)
    job.check_gone(70)
    assert mode.workspace.why("stubborn")["cause"] == "supervisor_lost"
    assert stat(job.rank_pids[1]) is None
