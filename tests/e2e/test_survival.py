"""What a job does not notice: a controller or an agent that dies and comes back; and a cluster that is
brought back by `dev up`."""

import os
import signal

import pytest

from harness.process import process, wait_gone
from harness.waiting import wait_until

CLUSTER_MODES = pytest.mark.parametrize("mode", ["dev", "net"], indirect=True)
START_S = 20
UNTIL_GO = (
    "import os, signal, sys\n"
    "print('ready')\n"
    "while not os.path.exists(os.path.join(sys.argv[1], 'go')): signal.sigtimedwait([signal.SIGUSR1], 0.01)\n"
    "print('went on')\n"
)


def kill_and_bring_back(mode, who):
    """SIGKILL of the controller ("controller") or of a node's agent (its name), and a new one."""
    old = mode.controller() if who == "controller" else mode.agent(who)
    os.kill(old.pid, signal.SIGKILL)
    if mode.name == "dev":
        wait_gone([old], 5)
        mode.workspace.run("dev", "up", "-n", len(mode.node_names))
        return
    mode.daemon_of[who].wait(5)
    if who == "controller":
        mode.start_controller()
    else:
        mode.start_agent(who)


@CLUSTER_MODES
@pytest.mark.parametrize("who", ["controller", "node1", "node2"])
def test_ranks_run_on(mode, who):
    workspace = mode.workspace
    program = workspace.write("go.py", UNTIL_GO)
    job = workspace.start(*mode.launch_args(4), "--name", "steady", program, workspace.cwd)
    job.wait_line("(?s)ready.*ready.*ready.*ready", START_S)
    before = {rank: facts["pid"] for rank, facts in workspace.ranks("steady").items()}
    started = [process(pid) for pid in before.values()]

    kill_and_bring_back(mode, who)
    mode_up(mode)
    status = workspace.status("steady")
    assert (status["state"], status["attempt"]) == ("running", 0)
    assert {rank: facts["pid"] for rank, facts in workspace.ranks("steady").items()} == before
    assert all(one.alive() for one in started)

    workspace.write("go", "")
    wait_until(lambda: workspace.status("steady")["state"] == "succeeded", START_S, lambda: workspace.status("steady"))
    assert workspace.run("logs", "steady").stdout.count("went on") == 4
    assert job.wait(START_S) == 0, job.transcript()
    assert job.stdout.count("went on") == 4  # the client, too, found the controller again


def mode_up(mode):
    def up():
        done = mode.workspace.run("nodes", "--json", expect=None)
        return done.returncode == 0 and done.stdout.count('"state": "up"') == len(mode.node_names)

    wait_until(up, START_S, lambda: mode.workspace.run("nodes", expect=None).transcript())


@CLUSTER_MODES
def test_rank_that_fails_while_the_controller_is_away(mode):
    """The agents keep their reports; the new controller hears them and restarts the job."""
    workspace = mode.workspace
    program = workspace.write(
        "later.py",
        "import os, signal, sys\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('ready', attempt)\n"
        "if attempt == '0': signal.pause()\n",
    )
    job = workspace.start(*mode.launch_args(2), "--name", "later", "--grace", "2s", program)
    job.wait_line("(?s)ready 0.*ready 0", START_S)
    victim = process(workspace.ranks("later")[1]["pid"])
    old = mode.controller()
    os.kill(old.pid, signal.SIGKILL)
    wait_gone([old], 5)
    os.kill(victim.pid, signal.SIGKILL)
    wait_gone([victim], 5)
    if mode.name == "dev":
        workspace.run("dev", "up", "-n", 2)
    else:
        mode.daemon_of["controller"].wait(5)
        mode.start_controller()
    assert job.wait(START_S) == 0, job.transcript()
    status = workspace.status("later")
    assert (status["state"], status["attempt"], status["restarts"]) == ("succeeded", 1, 1)
    assert (status["why"]["cause"], status["why"]["rank"]) == ("signal", 1)


def test_dev_cluster_comes_and_goes(dev):
    workspace = dev.workspace
    before = {one.pid for one in dev.daemons()}
    assert len(before) == 3
    workspace.run("dev", "up", "-n", 2)
    assert {one.pid for one in dev.daemons()} == before
    program = workspace.write("wait.py", "import signal; print('ready'); signal.pause()\n")
    job = workspace.start("-n", 2, "--name", "inway", "--grace", "1s", program)
    job.wait_line("(?s)ready.*ready", START_S)
    daemons = dev.daemons()
    workspace.run("dev", "down")
    assert job.wait(START_S) == 143, job.transcript()
    wait_gone(daemons, 2)
    done = workspace.run("-n", 2, program, expect=78)
    assert "dgxrun dev up -n 2" in done.stderr
    workspace.run("dev", "up", "-n", 2)
    assert workspace.status("inway")["state"] == "stopped"  # the log is there again


def test_unreachable_controller(workspace, leaks):
    path = workspace.write("c.toml", f'[cluster]\nname = "c"\ncontroller = "unix:{workspace.root}/none.sock"\n')
    program = workspace.write("x.py", "print('ran')\n")
    done = workspace.run("--cluster", path, program, expect=69, seconds=10)
    assert "none.sock" in done.stderr


@pytest.mark.root
def test_unreachable_network(net):
    """Refused at once; dropped packets after the documented 5 s."""
    workspace = net.workspace
    program = workspace.write("x.py", "print('ran')\n")
    with open(net.user_file, encoding="utf-8") as file:
        text = file.read()
    for address, seconds in (("10.77.0.1:9", 3), ("10.77.0.99:7070", 9)):
        path = workspace.write("other.toml", text.replace(f"10.77.0.1:{net.port}", address))
        done = workspace.run("--cluster", path, "-n", 1, program, expect=69, seconds=seconds)
        assert address in done.stderr


@pytest.mark.root
def test_node_cut_off(net):
    """Its link goes down: the controller calls it lost, its own shims kill its ranks, and the job ends by
    that cause, since two nodes were asked for and one is left."""
    workspace = net.workspace
    program = workspace.write("wait.py", "import signal; print('ready'); signal.pause()\n")
    job = workspace.start("-n", 2, "--max-restarts", 0, "--grace", "1s", "--name", "cut", program)
    job.wait_line("(?s)ready.*ready", START_S)
    ranks = {rank: process(facts["pid"]) for rank, facts in workspace.ranks("cut").items()}
    net.network.hub.ip("link", "set", "to-node2", "down")
    wait_gone([ranks[0]], net.node_lease_ms / 1000 + 3)
    wait_gone([ranks[1]], net.fence_s)
    assert job.wait(START_S) == 69, job.transcript()
    why = workspace.why("cut")
    assert (why["cause"], why["node"]) == ("node_lost", "node2")
    net.network.hub.ip("link", "set", "to-node2", "up")
    mode_up(net)
    workspace.run("-n", 2, "--no-python", "true")
