#!/usr/bin/env python3
"""Two real releases in one cluster: mixed_releases.py BIN_A BIN_B (folders with the programs of each).

For every mix of controller, agents and client: a job succeeds, a failed rank restarts another from its checkpoint,
and under a third all daemons are exchanged for the other release's: its ranks run on, and when one of them is killed
the new agent hears of it from the old shim. Prints what it did; ends with 1 at the first thing that is not so.

Not in CI, which has one build: there test_upgrade.py speaks the old wire through wire_proxy.
"""

import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))

from harness.modes import UP_S  # noqa: E402
from harness.process import become_subreaper, descendants  # noqa: E402
from harness.upgrade import UpgradeMode  # noqa: E402
from harness.waiting import wait_until  # noqa: E402
from harness.workspace import Workspace  # noqa: E402

RESUMES = (
    "import os, sys\n"
    "attempt, rank = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK']\n"
    "print('attempt', attempt, 'from', os.environ.get('DGXRUN_RESUME_FROM'))\n"
    "if attempt == '0' and rank == '3':\n"
    "    open('ckpt/step_20.pt', 'w').write('x')\n"
    "    sys.exit('no more')\n"
)
WAITS = "import signal; print('ready'); signal.pause()"


class Mixed(UpgradeMode):
    """`bins`: who -> folder of its programs."""

    def __init__(self, workspace, bins):
        self.bins = bins
        super().__init__(workspace, old=())

    def start_proxy(self, say):
        pass

    def start(self, who, program, *config):
        self.workspace.bin = self.bins[who]
        try:
            return super().start(who, program, *config)
        finally:
            self.workspace.bin = self.bins["client"]

    def exchange(self, who, folder):
        self.daemon_of[who].popen.terminate()
        self.daemon_of[who].wait(UP_S)
        self.bins[who] = folder
        if who == "controller":
            self.start(who, "dgxrun-controller", os.path.join(self.workspace.root, "controller.toml"))
        else:
            self.start_agent(who)
        wait_until(self.up, UP_S, lambda: self.daemon_of[who].transcript())


def check(mode, other):
    workspace = mode.workspace
    done = workspace.run("-n", 2, "-g", 2, "--no-python", "/bin/sh", "-c", "echo rank $RANK")
    assert done.stdout.count("rank ") == 4, done.transcript()
    print("  a job succeeds")
    os.mkdir(workspace.path("ckpt"))
    done = workspace.run("-n", 2, "-g", 2, "--name", "resumes", "--ckpt-dir", "ckpt", "--grace", "2s", workspace.write("resumes.py", RESUMES))
    assert done.stdout.count("attempt 1 from " + workspace.path("ckpt/step_20.pt")) == 4, done.transcript()
    why = workspace.why("resumes")
    assert (why["cause"], why["rank"]) == ("exit_code", 3), why
    assert workspace.run("logs", "resumes").stdout.count("attempt 1") == 4
    print("  a failed rank: restart from the checkpoint; status, why, logs")
    job = workspace.start("-n", 2, "-g", 1, "--name", "waits", workspace.write("waits.py", WAITS))
    job.wait_line("(?s)ready.*ready", UP_S)
    before = {rank: facts["pid"] for rank, facts in workspace.ranks("waits").items()}
    for who in ("controller", "node1", "node2"):
        mode.exchange(who, other[mode.bins[who]])
    status = workspace.status("waits")
    assert (status["state"], status["attempt"]) == ("running", 0), status
    assert {rank: facts["pid"] for rank, facts in workspace.ranks("waits").items()} == before
    print("  every daemon was exchanged: the same ranks run on")
    os.kill(before[1], signal.SIGUSR1)
    job.wait_line("killed by SIGUSR1; restart 1 of 3", UP_S, stream="stderr")
    job.wait_line("(?s)(ready.*){4}", UP_S)
    workspace.run("stop", "waits")
    assert job.wait(UP_S) == 143, job.transcript()
    print("  a rank of the old shim was killed: restart; then stopped")


def main():
    a, b = map(os.path.abspath, sys.argv[1:3])
    os.environ["DGXRUN_BIN"] = a
    become_subreaper()
    folder = tempfile.mkdtemp(prefix="mixed", dir="/dev/shm")
    mixes = [
        {"controller": a, "node1": b, "node2": b, "client": a},
        {"controller": b, "node1": a, "node2": a, "client": b},
        {"controller": a, "node1": b, "node2": a, "client": b},
        {"controller": b, "node1": a, "node2": b, "client": a},
    ]
    try:
        for bins in mixes:
            print(" ".join(f"{who}={'A' if bins[who] == a else 'B'}" for who in bins), flush=True)
            workspace = Workspace(folder, "mixed")
            workspace.bin = bins["client"]
            mode = Mixed(workspace, dict(bins))
            try:
                check(mode, {a: b, b: a})
            finally:
                for who in ("node1", "node2", "controller"):
                    mode.daemon_of[who].popen.terminate()
                    mode.daemon_of[who].wait(UP_S)
                workspace.close()
                workspace.remove()
    finally:
        for one in descendants():
            os.kill(one.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    print("all mixes work")


if __name__ == "__main__":
    main()
