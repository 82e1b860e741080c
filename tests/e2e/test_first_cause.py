"""The rank that failed first is named, not those that died of it."""

import os
import signal

import pytest

from harness.workspace import RANKS

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
TORCH_S = 120


@ALL_MODES
@pytest.mark.parametrize("culprit", [0, 2])
def test_rank_that_exits_85(mode, culprit):
    workspace = mode.workspace
    done = workspace.run(
        *mode.launch_args(4), "--max-restarts", 0, "--grace", "5s", "--name", "cause",
        os.path.join(RANKS, "exits_85.py"), culprit, expect=85, seconds=TORCH_S,
    )
    node = mode.node_names[culprit * len(mode.node_names) // 4]

    why = workspace.why("cause")
    assert (why["cause"], why["rank"], why["node"]) == ("exit_code", culprit, node)
    assert "85" in why["detail"]
    tail = "\n".join(why["stderr_tail"])
    assert "Traceback (most recent call last)" in tail
    assert "RuntimeError: bad sample 17 in shard 4" in tail

    told = workspace.run("why", "cause").stdout
    for part in (f"rank {culprit}", node, "85", "RuntimeError: bad sample 17 in shard 4"):
        assert part in told

    # The summary says it too, with no question asked.
    for part in (f"rank {culprit}", node, "bad sample 17"):
        assert part in done.stderr
    exits = {number: rank["exit"] for number, rank in workspace.ranks("cause").items()}
    assert exits[culprit] == 85
    assert all(exits[number] not in (0, None) for number in range(4))


@ALL_MODES
def test_rank_killed_by_a_signal(mode):
    workspace = mode.workspace
    program = workspace.write(
        "crash.py",
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSEGV)\n"
        "signal.pause()\n",
    )
    workspace.run(*mode.launch_args(2), "--max-restarts", 0, "--name", "segv", program, expect=128 + signal.SIGSEGV)
    why = workspace.why("segv")
    assert (why["cause"], why["rank"], why["node"]) == ("signal", 1, mode.node_names[-1])
    assert "SIGSEGV" in why["detail"]


def test_restart_budget_is_the_jobs(dev):
    """Ranks on both nodes fail in turn: the budget counts them together, and the last failure is told."""
    workspace = dev.workspace
    program = workspace.write(
        "turns.py",
        "import os, signal, sys\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if int(os.environ['RANK']) == attempt % 2: sys.exit(10 + attempt)\n"
        "signal.pause()\n",
    )
    done = workspace.run("-n", 2, "-g", 1, "--max-restarts", 3, "--name", "turns", program, expect=13)
    status = workspace.status("turns")
    assert (status["state"], status["attempt"], status["restarts"]) == ("failed", 3, 3)
    assert (status["why"]["rank"], status["why"]["node"]) == (1, "node2")
    assert "restart 1 of 3" in done.stderr and "restart 3 of 3" in done.stderr
