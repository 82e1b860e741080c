"""A controller that is down, a node that is cut off, and what tells one from the other: with real processes on
network namespaces."""

import os
import signal

import pytest

from harness import modes
from harness.process import process, wait_gone
from harness.waiting import wait_until

pytestmark = pytest.mark.root
START_S = 20
STEPS = (
    "import os, sys, time\n"
    "rank = os.environ['RANK']\n"
    "print('ready', flush=True)\n"
    "step = 0\n"
    "while not os.path.exists(os.path.join(sys.argv[1], 'go')):\n"
    "    step += 1\n"
    "    with open(os.path.join(sys.argv[1], f'step.{rank}.tmp'), 'w') as file: file.write(str(step))\n"
    "    os.replace(os.path.join(sys.argv[1], f'step.{rank}.tmp'), os.path.join(sys.argv[1], f'step.{rank}'))\n"
    "    time.sleep(0.02)\n"
    "print('went on', flush=True)\n"
)


class CommitteeMode(modes.NetMode):
    """Enough time between lease and isolation for the committee to be asked twice."""

    node_lease_ms, isolation_ms = 2500, 7000
    fence_s = isolation_ms / 1000 + modes.PROMPT_S


@pytest.fixture
def three(workspace, leaks):
    mode = CommitteeMode(workspace, nodes=3)
    yield mode
    mode.close()


def step_of(workspace, rank):
    with open(os.path.join(workspace.cwd, f"step.{rank}"), encoding="utf-8") as file:
        return int(file.read())


def start(mode, nodes, *options):
    workspace = mode.workspace
    program = workspace.write("steps.py", STEPS)
    job = workspace.start("-n", nodes, *options, "--grace", "1s", "--name", "steady", program, workspace.cwd)
    job.wait_line("(?s)" + ".*".join(["ready"] * nodes), START_S)
    return job


def test_ranks_outlive_a_controller_that_stays_away(three):
    """Three times the isolation timeout: the committee says that it is the controller that is down."""
    workspace = three.workspace
    job = start(three, 3)
    before = {rank: facts["pid"] for rank, facts in workspace.ranks("steady").items()}
    controller = three.controller()
    os.kill(controller.pid, signal.SIGKILL)
    wait_gone([controller], 5)
    three.daemon_of["controller"].wait(5)

    begin = [step_of(workspace, rank) for rank in range(3)]
    enough = 3 * three.isolation_ms / 1000 / 0.02 * 0.5  # a loaded machine makes half of the steps
    wait_until(
        lambda: all(step_of(workspace, rank) > begin[rank] + enough for rank in range(3)), 60,
        lambda: "\n".join(d.transcript() for d in three.daemon_of.values()),
    )
    assert all(process(pid).alive() for pid in before.values())

    three.start_controller()
    three.wait_nodes(3)
    status = workspace.status("steady")
    assert (status["state"], status["attempt"]) == ("running", 0)
    assert {rank: facts["pid"] for rank, facts in workspace.ranks("steady").items()} == before
    workspace.write("go", "")
    assert job.wait(START_S) == 0, job.transcript()
    assert job.stdout.count("went on") == 3
    assert "witnesses say the same" in three.daemon_of["node1"].transcript()


def test_an_agent_that_dies_meanwhile_goes_on_with_its_licence(three):
    workspace = three.workspace
    job = start(three, 3)
    pids = [facts["pid"] for facts in workspace.ranks("steady").values()]
    controller = three.controller()
    os.kill(controller.pid, signal.SIGKILL)
    three.daemon_of["controller"].wait(5)
    agent = three.agent("node2")
    os.kill(agent.pid, signal.SIGKILL)
    three.daemon_of["node2"].wait(5)
    three.start_agent("node2")
    begin = step_of(workspace, 1)
    wait_until(lambda: step_of(workspace, 1) > begin + 2 * three.isolation_ms / 1000 / 0.02 * 0.5, 60,
               lambda: three.daemon_of["node2"].transcript())
    assert all(process(pid).alive() for pid in pids)
    three.start_controller()
    three.wait_nodes(3)
    assert workspace.status("steady")["attempt"] == 0
    workspace.write("go", "")
    assert job.wait(START_S) == 0, job.transcript()
    assert job.stdout.count("went on") == 3


def test_a_node_that_is_cut_off_kills_its_ranks_and_is_fenced(three):
    """Two of three members answer the controller, so no majority can keep node3's ranks alive."""
    workspace = three.workspace
    job = start(three, 2, "--max-restarts", 1)
    ranks = {rank: process(facts["pid"]) for rank, facts in workspace.ranks("steady").items()}
    three.network.hub.ip("link", "set", "to-node2", "down")
    wait_gone([ranks[1]], three.fence_s)
    # The new attempt uses node3 in its place.
    wait_until(lambda: workspace.status("steady")["attempt"] == 1, three.fence_s + 15,
               lambda: str(workspace.status("steady")))
    job.wait_line("(?s)ready.*ready.*ready.*ready", START_S)
    assert [node["name"] for node in workspace.status("steady")["nodes"]] == ["node1", "node3"]
    three.network.hub.ip("link", "set", "to-node2", "up")
    workspace.write("go", "")
    assert job.wait(START_S) == 0, job.transcript()


def test_a_silent_majority_needs_a_persons_word(three):
    """Two of three nodes are off: nothing proves it, so status says what it waits for, and a person may say so."""
    workspace = three.workspace
    job = start(three, 2, "--max-restarts", 0)
    for node in ("node1", "node2"):
        three.network.hub.ip("link", "set", f"to-{node}", "down")
    wait_until(lambda: "proof that node node1 is off" in (workspace.status("steady")["waiting_for"] or ""),
               three.fence_s + 10, lambda: str(workspace.status("steady")))
    waiting = workspace.status("steady")["waiting_for"]
    assert "`dgxrun nodes fence node1 --is-off`" in waiting
    assert "node1, node2 of the committee" in waiting

    refused = workspace.run("nodes", "fence", "node3", "--is-off", expect=None)
    assert refused.returncode != 0 and "node3 is in touch" in refused.stderr
    refused = workspace.run("nodes", "fence", "node1", expect=None)
    assert refused.returncode == 64 and "--is-off" in refused.stderr
    for node in ("node1", "node2"):
        workspace.run("nodes", "fence", node, "--is-off")
    wait_until(lambda: workspace.status("steady")["state"] == "failed", START_S,
               lambda: str(workspace.status("steady")))
    assert workspace.why("steady")["cause"] == "node_lost"
    assert job.wait(START_S) == 69, job.transcript()
    for node in ("node1", "node2"):
        three.network.hub.ip("link", "set", f"to-{node}", "up")
    three.wait_nodes(3)
