"""Peers mode: the same command on every node, in any order; what each of them may survive."""

import json
import os
import re
import shutil
import signal
import stat
import time

import pytest

from harness.modes import PROMPT_S
from harness.peers import PORT, START_S, PeersNet, supervisors
from harness.process import process, wait_gone
from harness.waiting import wait_until
from harness.workspace import RANKS, TRAIN_GPT

pytestmark = pytest.mark.root
END_S = 30  # from the last step to the end of all commands; two loaded cores
ERROR_S = 5  # what is wrong with a command is said within this, from its start
TRAIN_S = 240


@pytest.fixture
def peers(workspace, leaks):
    net = PeersNet(workspace)
    yield net
    workspace.close()
    net.close()


def run_begun(peers, *args, **options):
    """Both commands, with ranks that take steps."""
    first = peers.launch("node1", *args, **options)
    second = peers.launch("node2", *args, **options)
    for running, ranks in ((first, (0, 1)), (second, (2, 3))):
        for rank in ranks:
            peers.steps(running, rank, more=1)
    return first, second


def rank_pids(peers):
    ranks = json.loads(peers.run("node1", "status", "--json").stdout)
    return {rank["rank"]: rank["pid"] for node in ranks["nodes"] for rank in node["ranks"]}


def status(peers, node):
    return json.loads(peers.run(node, "status", "--json").stdout)


def assert_no_step_lost(peers, running, rank, pid):
    """All steps of one process of the rank, up to its last one, are shown once and in order."""
    steps = [step for step, of, _ in peers.steps(running, rank) if of == pid]
    assert steps == list(range(steps[0], steps[0] + len(steps))), steps
    return steps


def test_any_order_each_node_with_its_own_command(peers):
    """The peer comes first, and waits; each node has arguments, folder and environment of its own."""
    workspace = peers.workspace
    facts = workspace.folder("facts")
    other = workspace.folder("other")
    second = peers._on("node2", workspace.start, "--nnodes=2", "--nproc_per_node=2", f"--rdzv_endpoint=node1:{PORT}",
                       "--rdzv_backend=c10d", "--device=cpu", f"{RANKS}/facts.py", facts, "word", cwd=other,
                       env={"OWN": "two"})
    second.wait_line(rf"waits for a dgxrun at node1:{PORT}; this machine has 10\.77\.0\.12", START_S, "stderr")
    first = peers.launch("node1", script=[f"{RANKS}/facts.py", facts], env={"OWN": "one"})
    assert first.wait(END_S) == 0, first.transcript()
    assert second.wait(END_S) == 0, second.transcript()
    seen = {}
    for rank in range(4):
        with open(f"{facts}/facts_{rank}.0.json", encoding="utf-8") as file:
            seen[rank] = json.load(file)
    for rank, fact in seen.items():
        env = fact["env"]
        assert (env["WORLD_SIZE"], env["LOCAL_RANK"], env["GROUP_RANK"]) == ("4", str(rank % 2), str(rank // 2))
        assert env["MASTER_ADDR"] == "node1"
        assert PORT < int(env["MASTER_PORT"]) <= PORT + 64
        assert env["OWN"] == ("one" if rank < 2 else "two")
        assert fact["argv"][2:] == ([] if rank < 2 else ["word"])
        assert fact["cwd"] == (workspace.cwd if rank < 2 else other)
        assert env["DGXRUN_NODE"] == ("node1" if rank < 2 else "node2")
        assert not any("PEERS" in name for name in env)
    assert re.search(r"succeeded", first.stderr) and re.search(r"succeeded", second.stderr)
    assert not os.listdir(f"{workspace.run_dir}/node1") and not os.listdir(f"{workspace.run_dir}/node2")


def test_each_shows_its_own_ranks_and_all_end_with_the_first_failures_code(peers):
    first, second = run_begun(peers, "--max-restarts", 0)
    assert not re.search(r"rank [23] ", first.stdout) and not re.search(r"rank [01] ", second.stdout)
    assert status(peers, "node2")["state"] == "running"
    peers.fail(3, 7)
    assert (first.wait(END_S), second.wait(END_S)) == (7, 7), first.transcript() + second.transcript()
    for node, running in (("node1", first), ("node2", second)):
        assert "rank 3 on node2" in running.stderr, running.transcript()
        why = json.loads(peers.run(node, "why", "--json").stdout)["why"]
        assert (why["rank"], why["node"]) == (3, "node2")
    assert "rank 3 step 1 " in peers.run("node2", "logs", "-r", 3).stdout


@pytest.mark.parametrize("log", ["kept", "lost"])
def test_the_endpoints_process_is_killed_and_started_again(peers, leaks, log):
    """Ranks do not notice; the restart that was used before still counts. With its log, and with capsules alone."""
    workspace = peers.workspace
    first, second = run_begun(peers, "--max-restarts", 1)
    peers.fail(1, 5)
    second.wait_line(r"rank 2 step 1 pid \d+ attempt 1$", START_S)
    first.wait_line(r"rank 0 step 1 pid \d+ attempt 1$", START_S)
    before = rank_pids(peers)
    job = status(peers, "node2")["job"]
    first.popen.kill()
    first.wait(END_S)
    # Their output is in its files meanwhile; the console goes through the endpoint.
    file = f"{workspace.state}/node2/local/{job}/attempt_1/rank_2.out"
    size = os.path.getsize(file)
    wait_until(lambda: os.path.getsize(file) > size, START_S, "more steps of rank 2")
    if log == "lost":
        for folder in os.listdir(f"{workspace.run_dir}/node1/peers"):
            shutil.rmtree(f"{workspace.run_dir}/node1/peers/{folder}/controller")
    again = peers.launch("node1", "--max-restarts", 1)
    again.wait_line(r"rank 0 step \d+ pid \d+ attempt 1$", START_S)
    second.wait_line(r"answers again", START_S, "stderr")
    now = status(peers, "node1")
    assert (now["job"], now["attempt"], now["restarts"]) == (job, 1, 1)
    assert rank_pids(peers) == before
    assert all(process(pid).alive() for pid in before.values())
    for rank in (2, 3):
        peers.steps(second, rank, more=2)
        assert_no_step_lost(peers, second, rank, before[rank])
    peers.steps(again, 0, more=2)
    # The budget is used up: the next failure is the end, and everybody's code.
    peers.fail(3, 9)
    assert (again.wait(END_S), second.wait(END_S)) == (9, 9), again.transcript() + second.transcript()


def test_a_peer_is_killed_and_started_again(peers):
    first, second = run_begun(peers)
    before = rank_pids(peers)
    second.popen.kill()
    second.wait(END_S)
    again = peers.launch("node2")
    again.wait_line(r"rank 2 step \d+ pid \d+ attempt 0$", START_S)
    assert rank_pids(peers) == before
    peers.steps(first, 0, more=5)
    peers.steps(again, 2, more=2)
    peers.finish()
    assert (first.wait(END_S), again.wait(END_S)) == (0, 0), first.transcript() + again.transcript()
    assert status(peers, "node1")["restarts"] == 0
    assert_no_step_lost(peers, first, 0, before[0])


def test_ranks_without_an_endpoint_end_after_the_orphan_timeout(peers):
    first, second = run_begun(peers, "--orphan-timeout", "5s")
    pids = [process(pid) for pid in rank_pids(peers).values()]
    first.popen.kill()
    first.wait(END_S)
    killed = time.monotonic()
    wait_until(lambda: time.monotonic() - killed > 2, 10, "2 s")
    assert all(pid.alive() for pid in pids), "they run on for a while"
    wait_gone(pids, 5 + PROMPT_S)
    assert second.wait(END_S) == 69, second.transcript()
    assert "did not come back in time" in second.stderr
    # What is left on node1 is history: the same command is a new job.
    again = peers.launch("node1", "--orphan-timeout", "5s", nodes=1)
    peers.steps(again, 0, more=1)
    assert status(peers, "node1")["restarts"] == 0
    peers.finish()
    assert again.wait(END_S) == 0, again.transcript()


@pytest.mark.parametrize("leaver, other", [("node1", "node2"), ("node2", "node1")])
def test_ctrl_c_on_any_node_stops_the_whole_job(peers, leaver, other):
    running = dict(zip(("node1", "node2"), run_begun(peers)))
    pids = [process(pid) for pid in rank_pids(peers).values()]
    running[leaver].signal(signal.SIGINT)
    assert running[leaver].wait(END_S) == 130, running[leaver].transcript()
    assert running[other].wait(END_S) == 130, running[other].transcript()
    assert not any(pid.alive() for pid in pids)


def test_ctrl_c_while_the_endpoint_is_away(peers):
    first, second = run_begun(peers, "--orphan-timeout", "12s")
    pids = rank_pids(peers)
    first.popen.kill()
    first.wait(END_S)
    second.signal(signal.SIGINT)
    assert second.wait(END_S) == 130, second.transcript()
    assert not any(os.path.exists(f"/proc/{pids[rank]}") for rank in (2, 3))
    # Takes its ranks up again, and ends them in good order; of node2 it hears no more.
    again = peers.launch("node1", "--orphan-timeout", "12s")
    peers.steps(again, 0, more=1)
    again.signal(signal.SIGTERM)
    assert again.wait(END_S) == 143, again.transcript()


def test_stop_and_logs_from_a_peers_machine(peers):
    first, second = run_begun(peers)
    follow = peers.start("node2", "logs", "-f", "-r", "0")
    follow.wait_line(r"rank 0 step \d+", START_S)
    assert "stopped" in peers.run("node2", "stop").stdout
    assert (first.wait(END_S), second.wait(END_S)) == (143, 143)
    assert follow.wait(END_S) in (0, 69), follow.transcript()
    assert status(peers, "node1")["state"] == status(peers, "node2")["state"] == "stopped"


def test_a_peer_with_another_key(peers):
    first = peers.launch("node1")
    first.wait_line(r"waits for 1 of 2 nodes", START_S, "stderr")
    began = time.monotonic()
    second = peers.launch("node2", env={"DGXRUN_PEERS_KEY": "these are other words"})
    assert second.wait(END_S) == 77, second.transcript()
    assert time.monotonic() - began < ERROR_S
    assert re.search(r"has another key: copy \S+/peers\.key .*, or set DGXRUN_PEERS_KEY", second.stderr)
    short = peers.launch("node2", env={"DGXRUN_PEERS_KEY": "short"})
    assert short.wait(END_S) == 78 and "16" in short.stderr
    # The right one still comes in.
    third = peers.launch("node2")
    peers.steps(first, 0, more=1)
    peers.finish()
    assert (first.wait(END_S), third.wait(END_S)) == (0, 0)


@pytest.mark.parametrize("differs, words", [
    (["--rdzv-id", "b"], "--rdzv-id b, the endpoint's command for --rdzv-id none"),
    (["--max-restarts", "1"], "--max-restarts 1, the endpoint's command for --max-restarts 3"),
    (["--nproc-per-node", "1"], "--nproc-per-node 1, the endpoint's command for --nproc-per-node 2"),
    (["--nnodes", "3"], "--nnodes 3, the endpoint's command for --nnodes 2"),
    (["--node-rank", "2"], "--node-rank 2: the job has 2 nodes"),
])
def test_commands_that_differ(peers, differs, words):
    first = peers.launch("node1")
    first.wait_line(r"waits for 1 of 2 nodes", START_S, "stderr")
    began = time.monotonic()
    second = peers.launch("node2", *differs)
    assert second.wait(END_S) == 78, second.transcript()
    assert time.monotonic() - began < ERROR_S
    assert words in second.stderr and len(second.stderr.strip().splitlines()) <= 2, second.transcript()
    first.signal(signal.SIGINT)
    assert first.wait(END_S) == 130


def test_a_port_that_something_else_has(peers):
    code = ("import socket; s = socket.create_server(('', %d)); print('up', flush=True)\n"
            "while True: c, _ = s.accept(); c.sendall(b'220 hello\\r\\n'); c.close()\n" % PORT)
    workspace = peers.workspace
    from harness.process import Running
    other = Running(peers.network.hosts["node1"].argv("/usr/bin/python3", "-c", code), env=workspace.env,
                    cwd=workspace.cwd, out_dir=workspace.out, name="other")
    workspace.running.append(other)
    other.wait_line("up", START_S)
    began = time.monotonic()
    for node in ("node1", "node2"):
        running = peers.launch(node)
        assert running.wait(END_S) == 78, running.transcript()
        assert f"port {PORT} of node1 is busy" in running.stderr
    assert time.monotonic() - began < 2 * ERROR_S


def test_an_endpoint_that_is_nobodys_and_nodes_that_do_not_come(peers):
    began = time.monotonic()
    nobody = peers.launch("node2", "--join-timeout", "1s", endpoint="10.77.0.1")
    alone = peers.launch("node1", "--join-timeout", "1s")
    assert nobody.wait(END_S) == 69, nobody.transcript()
    assert "10.77.0.1 is no address of this machine (10.77.0.12)" in nobody.stderr
    assert alone.wait(END_S) == 69, alone.transcript()
    assert f"only 1 of 2 nodes came to node1:{PORT} within 1s: node1" in alone.stderr
    assert time.monotonic() - began < 2 * ERROR_S


def test_a_node_that_does_not_come_back_is_not_waited_for_longer_than_the_join_timeout(peers):
    """Before a restart as before the start."""
    first, second = run_begun(peers, "--join-timeout", "4s", "--orphan-timeout", "5s")
    pids = [process(pid) for pid in rank_pids(peers).values()]
    second.popen.kill()
    for shim in peers.shims("node2"):
        wait_until(lambda shim=shim: not os.path.exists(shim), END_S, "node2's ranks die with their lease")
    assert first.wait(END_S) == 69, first.transcript()
    assert "only 1 of 2 nodes were there for the next attempt within 4s (--join-timeout): node1" in first.stderr
    assert status(peers, "node1")["state"] == "failed"
    assert not any(pid.alive() for pid in pids)
    # Both commands again are a new job, which takes the place that the killed one left.
    peers.finish()
    both = [peers.launch(node, "--orphan-timeout", "5s") for node in ("node1", "node2")]
    assert [one.wait(END_S) for one in both] == [0, 0], both[0].transcript() + both[1].transcript()


@pytest.mark.parametrize("code", [0, 7])
def test_the_endpoints_process_dies_with_the_job(peers, code):
    """Each agent is told how the job ended, so the other command knows it all the same."""
    first, second = run_begun(peers, "--max-restarts", 0)
    if code == 0:
        peers.finish()
    else:
        peers.fail(3, code)
    first.wait_line(r"dgxrun: job \S+ (succeeded|failed)", END_S, "stderr")
    first.popen.kill()
    assert second.wait(END_S) == code, second.transcript()
    assert re.search(r"dgxrun: job \S+ (succeeded|failed)", second.stderr), second.transcript()
    # Started again, it says the same.
    again = peers.launch("node1", "--max-restarts", 0)
    assert again.wait(END_S) == code, again.transcript()
    assert re.search(r"dgxrun: job \S+ (succeeded|failed)", again.stderr), again.transcript()


def test_two_nodes_on_one_machine(peers):
    """Two commands of one host are two nodes; killed ones find their own ranks again."""
    both = [peers.launch("node1", endpoint="localhost") for _ in range(2)]
    shown = lambda: sorted(sorted(set(re.findall(r"rank (\d) step", one.stdout))) for one in both)  # noqa: E731
    wait_until(lambda: shown() == [["0", "1"], ["2", "3"]], START_S,
               lambda: both[0].transcript() + both[1].transcript())
    before = rank_pids(peers)
    for one in both:
        one.popen.kill()
        one.wait(END_S)
    both = [peers.launch("node1", endpoint="localhost") for _ in range(2)]
    wait_until(lambda: all(" step " in one.stdout for one in both), START_S,
               lambda: both[0].transcript() + both[1].transcript())
    assert rank_pids(peers) == before
    peers.finish()
    assert [one.wait(END_S) for one in both] == [0, 0], both[0].transcript() + both[1].transcript()


def test_secrets_are_in_no_file_and_on_no_command_line(peers):
    workspace = peers.workspace
    words = "correct horse battery staple 27"
    env = {"MY_TOKEN": "s3cr3t-of-the-user", "DGXRUN_PEERS_KEY": words}
    first, second = run_begun(peers, env=env)
    for folder, _, names in os.walk(workspace.root):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                with open(path, "rb") as file:
                    text = file.read()
            except FileNotFoundError:  # written by way of another name
                continue
            assert b"s3cr3t-of-the-user" not in text and words.encode() not in text, path
            assert b"PRIVATE KEY" not in text, path
    for one in supervisors(rank_pids(peers)[0]):
        with open(f"/proc/{one.pid}/environ", "rb") as file:
            assert words.encode() not in file.read()
    peers.finish()
    assert (first.wait(END_S), second.wait(END_S)) == (0, 0)
    key = f"{workspace.home}/.config/dgxrun/peers.key"
    assert not os.path.exists(key), "the variable was set"
    peers.launch("node1", nodes=1).wait(END_S)
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600


def test_same_losses_with_the_endpoint_killed_in_between(peers):
    """Real ranks with gloo; their results are those of a job on one machine, to the last digit."""
    workspace = peers.workspace
    fifo = workspace.path("hold")
    os.mkfifo(fifo)
    script = [TRAIN_GPT, "--steps", 20, "--ckpt-dir", workspace.path("ckpt"), "--hold-at", 10, "--hold-fifo", fifo]
    first = peers.launch("node1", script=script)
    second = peers.launch("node2", script=script)
    first.wait_line(r"holding at step 10$", TRAIN_S)
    first.popen.kill()
    first.wait(END_S)
    again = peers.launch("node1", script=script)
    again.wait_line(r"holding at step 10$", START_S)
    writer = os.open(fifo, os.O_RDWR)
    try:
        assert (again.wait(TRAIN_S), second.wait(TRAIN_S)) == (0, 0), again.transcript() + second.transcript()
    finally:
        os.close(writer)
    loss = re.search(r"done: 20 steps, final loss (\S+)", again.stdout).group(1)
    plain = workspace.run("-g", 4, "--device", "cpu", TRAIN_GPT, "--steps", 20, "--ckpt-dir", workspace.path("plain"),
                          seconds=TRAIN_S)
    assert f"final loss {loss}" in plain.stdout
