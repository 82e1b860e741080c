"""status, why, nodes, logs and stop: what they print, and how a job is named."""

import os
import signal

import pytest

from harness.process import stat

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
START_S = 20
WAIT = "import signal; print('ready'); signal.pause()\n"


def start_waiting(mode, name, ranks=2):
    workspace = mode.workspace
    program = workspace.write("wait.py", WAIT)
    job = workspace.start(*mode.launch_args(ranks), "--grace", "2s", "--name", name, program)
    job.wait_line("(?s)" + ".*".join(["ready"] * ranks), START_S)
    return job


@ALL_MODES
def test_running_stopping_stopped(mode):
    workspace = mode.workspace
    job = start_waiting(mode, "look")
    status = workspace.status("look")
    assert status["state"] == "running"
    assert (status["name"], status["attempt"], status["restarts"]) == ("look", 0, 0)
    assert (status["why"], status["checkpoint"]) == (None, None)
    assert [node["name"] for node in status["nodes"]] == mode.node_names
    assert {node["state"] for node in status["nodes"]} == {"up"}
    ranks = [(rank["rank"], rank["state"], rank["exit"]) for node in status["nodes"] for rank in node["ranks"]]
    assert ranks == [(0, "running", None), (1, "running", None)]
    for node in status["nodes"]:
        for rank in node["ranks"]:
            assert stat(rank["pid"])["state"] in "SR"
            assert rank["local_rank"] == rank["rank"] % (2 // len(mode.node_names))
    # By id, by name, and by nothing at all.
    assert workspace.status(status["job"])["job"] == workspace.status()["job"] == status["job"]
    assert "look" in workspace.run("status").stdout

    workspace.run("stop", "look")
    assert job.wait(START_S) == 143
    ended = workspace.status(status["job"])
    assert (ended["state"], ended["exit_code"], ended["why"]["cause"]) == ("stopped", 143, "stopped")
    assert {rank["state"] for node in ended["nodes"] for rank in node["ranks"]} == {"exited"}


@ALL_MODES
def test_ended_jobs_answer_and_the_latest_is_the_default(mode):
    workspace = mode.workspace
    good = workspace.write("good.py", "print('fine')\n")
    bad = workspace.write("bad.py", "import sys; print('oh no', file=sys.stderr); sys.exit(7)\n")
    workspace.run(*mode.launch_args(2), "--name", "same", good)
    workspace.run(*mode.launch_args(2), "--name", "same", "--max-restarts", 0, bad, expect=7)
    workspace.run(*mode.launch_args(2), "--name", "last", good)

    assert workspace.status()["name"] == "last"
    assert workspace.status("same")["state"] == "failed"  # a name means the newest job of that name
    assert workspace.why("same")["cause"] == "exit_code"
    assert "oh no" in "\n".join(workspace.why("same")["stderr_tail"])
    listed = workspace.json("status", "--all")
    assert [(job["name"], job["state"]) for job in listed] == [
        ("last", "succeeded"), ("same", "failed"), ("same", "succeeded"),
    ]
    assert len({job["job"] for job in listed}) == 3
    assert workspace.status(listed[2]["job"])["state"] == "succeeded"
    assert workspace.run("logs", listed[2]["job"]).stdout.count("fine") == 2


def test_local_and_cluster_jobs_in_one_list(dev):
    workspace = dev.workspace
    good = workspace.write("good.py", "print('fine')\n")
    workspace.run("-n", 2, "--name", "there", good)
    workspace.run("-g", 2, "--name", "here", good)
    assert workspace.status()["name"] == "here"
    assert workspace.status("there")["nodes"][1]["name"] == "node2"
    assert [job["name"] for job in workspace.json("status", "--all")] == ["here", "there"]


@pytest.mark.parametrize("mode", ["dev", "net"], indirect=True)
def test_nodes(mode):
    workspace = mode.workspace
    job = start_waiting(mode, "busy")
    nodes = workspace.json("nodes")
    assert [(node["name"], node["state"]) for node in nodes] == [(name, "up") for name in mode.node_names]
    assert all(node["jobs"] == [workspace.status("busy")["job"]] for node in nodes)
    assert all(node["cores"] == len(os.sched_getaffinity(0)) for node in nodes)
    if mode.name == "net":
        assert [node["address"] for node in nodes] == list(mode.network.addresses.values())
    told = workspace.run("nodes").stdout
    assert all(name in told for name in mode.node_names)
    workspace.run("stop", "busy")
    assert job.wait(START_S) == 143


def test_stop_shortens_the_grace(local):
    workspace = local.workspace
    program = workspace.write(
        "deaf.py",
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready')\nwhile True: signal.pause()\n",
    )
    job = workspace.start("-g", 2, "--grace", "1000s", "--name", "deaf", program)
    job.wait_line("(?s)ready.*ready", START_S)
    workspace.run("stop", "deaf", "--grace", "100ms", seconds=10)
    assert job.wait(5) == 143
    assert {rank["signal"] for node in workspace.status("deaf")["nodes"] for rank in node["ranks"]} == {signal.SIGKILL}


def test_a_rank_may_save_in_the_grace_time(local):
    workspace = local.workspace
    program = workspace.write(
        "tidy.py",
        "import signal, sys\n"
        "def leave(*_): print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave); print('ready')\nwhile True: signal.pause()\n",
    )
    job = workspace.start("-g", 2, "--name", "tidy", program)
    job.wait_line("(?s)ready.*ready", START_S)
    workspace.run("stop", "tidy")
    assert job.wait(5) == 143
    assert job.stdout.count("saved") == 2
    assert workspace.status("tidy")["state"] == "stopped"


def test_stop_of_an_ended_job_changes_nothing(dev):
    workspace = dev.workspace
    workspace.run("-n", 1, "--name", "over", "--no-python", "true")
    workspace.run("stop", "over", expect=None)
    assert workspace.status("over")["state"] == "succeeded"


def test_help_and_version(workspace):
    text = workspace.run("--help").stdout
    for word in ("-n", "-g", "--max-restarts", "--ckpt-dir", "dev up", "status", "logs", "why", "stop"):
        assert word in text
    assert workspace.run("--version").stdout.startswith("dgxrun ")
    for command in ("status", "nodes", "logs", "why", "stop", "dev", "cluster"):
        assert f"dgxrun {command}" in workspace.run(command, "--help").stdout
