"""However a job ends, within two seconds nothing of it is left (where an agent was killed: within the
fence): no rank, no grandchild, no cgroup, no socket, no port."""

import json
import os
import shutil
import signal
import time

import pytest

from harness.modes import PROMPT_S, ancestry
from harness.leaks import port_is_free
from harness.process import descendants, process, wait_gone
from harness.waiting import wait_until
from harness.workspace import RANKS

STUBBORN = os.path.join(RANKS, "stubborn.py")
GRACE = "300ms"  # these ranks ignore SIGTERM, so each stop lasts as long
WORLD = 2
START_S = 20

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
CLUSTER_MODES = pytest.mark.parametrize("mode", ["dev", "net"], indirect=True)


@pytest.fixture(params=["cgroup", "no-cgroup"], autouse=True)
def with_and_without_cgroups(request, workspace):
    """Before the mode's daemons start, since it is the agent that makes cgroups."""
    if request.param == "no-cgroup":
        workspace.env["DGXRUN_NO_CGROUP"] = "1"


class Job:
    """Two stubborn ranks with two grandchildren each."""

    def __init__(self, mode, leaks, *what):
        self.mode, self.leaks, self.workspace = mode, leaks, mode.workspace
        self.dgxrun = self.workspace.start(
            *mode.launch_args(WORLD), "--grace", GRACE, "--max-restarts", 0, "--name", "stubborn",
            STUBBORN, self.workspace.cwd, *what,
        )
        facts = [self._facts(rank) for rank in range(WORLD)]
        self.port = facts[0]["port"]
        self.rank_pids = [fact["pids"][0] for fact in facts]
        self.processes = []
        for fact in facts:
            for pid in fact["pids"]:
                if os.path.exists(f"/proc/{pid}"):  # one that exits may be gone by now
                    self.processes.append(process(pid))

    def _facts(self, rank):
        path = self.workspace.path(f"rank_{rank}.0.json")
        wait_until(
            lambda: os.path.exists(path) or self.dgxrun.popen.poll() is not None, START_S, self.dgxrun.transcript
        )
        assert os.path.exists(path), self.dgxrun.transcript()
        with open(path, encoding="ascii") as file:
            return json.load(file)

    def check_gone(self, exit_code, seconds=PROMPT_S, end_seconds=None):
        """All is gone `seconds` from now, and dgxrun ends with this code (None: it was killed), where
        `end_seconds` is given at that time."""
        deadline = time.monotonic() + (end_seconds or seconds)
        wait_gone(self.processes, seconds)
        code = self.dgxrun.wait(max(0.1, deadline - time.monotonic()))
        if exit_code is not None:
            assert code == exit_code, self.dgxrun.transcript()
        self.leaks.check_job_gone(self.mode, max(0.1, deadline - time.monotonic()))
        master = self.mode.node_names[0]
        wait_until(
            lambda: port_is_free(self.mode, master, self.port), PROMPT_S, f"port {self.port} on {master} is free"
        )


@ALL_MODES
def test_after_success(mode, leaks):
    Job(mode, leaks, "exit:0").check_gone(0)


@ALL_MODES
def test_after_failure(mode, leaks):
    Job(mode, leaks, "exit:3", 1).check_gone(3)


@ALL_MODES
def test_after_stop(mode, leaks):
    job = Job(mode, leaks, "wait")
    mode.workspace.run("stop", "stubborn")
    job.check_gone(143)


@ALL_MODES
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_after_signal_to_dgxrun(mode, leaks, number, code):
    job = Job(mode, leaks, "wait")
    job.dgxrun.signal(number)
    job.check_gone(code)


def test_after_hangup_of_local_dgxrun(local, leaks):
    job = Job(local, leaks, "wait")
    job.dgxrun.signal(signal.SIGHUP)
    job.check_gone(None)


def test_after_sigkill_of_local_dgxrun(local, leaks):
    job = Job(local, leaks, "wait")
    job.dgxrun.signal(signal.SIGKILL)
    job.check_gone(-signal.SIGKILL)
    status = local.workspace.status("stubborn")
    assert (status["state"], status["why"]["cause"]) == ("failed", "client_lost")


@CLUSTER_MODES
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_client_death_means_detach_in_a_cluster(mode, leaks, number):
    job = Job(mode, leaks, "wait")
    job.dgxrun.signal(number)
    job.dgxrun.wait(PROMPT_S)
    assert mode.workspace.status("stubborn")["state"] == "running"
    assert all(one.alive() for one in job.processes)
    mode.workspace.run("stop", "stubborn")
    job.check_gone(None)


@CLUSTER_MODES
def test_after_sigkill_of_an_agent(mode, leaks):
    """Nobody starts it again, as a crashed machine's init would: the shim's lease runs out."""
    job = Job(mode, leaks, "wait")
    os.kill(mode.agent("node2").pid, signal.SIGKILL)
    job.check_gone(69, seconds=mode.fence_s, end_seconds=mode.fenced_s)
    why = mode.workspace.why("stubborn")
    assert (why["cause"], why["node"]) == ("node_lost", "node2")


@ALL_MODES
@pytest.mark.parametrize("victim", ["shim", "guard"])
def test_after_sigkill_of_a_supervisor(mode, leaks, victim):
    job = Job(mode, leaks, "wait")
    shim, guard, _ = ancestry(job.rank_pids[1])
    os.kill({"shim": shim, "guard": guard}[victim].pid, signal.SIGKILL)
    job.check_gone(70)
    why = mode.workspace.why("stubborn")
    assert (why["cause"], why["node"]) == ("supervisor_lost", mode.node_names[-1])


@ALL_MODES
def test_after_sigkill_of_a_shim_whose_guard_was_stopped(mode, leaks):
    job = Job(mode, leaks, "wait")
    shim, guard, _ = ancestry(job.rank_pids[1])
    os.kill(guard.pid, signal.SIGSTOP)
    os.kill(shim.pid, signal.SIGKILL)
    job.check_gone(70)
    wait_gone([guard], PROMPT_S)


@ALL_MODES
def test_a_stopped_shim_obeys(mode, leaks):
    job = Job(mode, leaks, "wait")
    shim, _, _ = ancestry(job.rank_pids[1])
    os.kill(shim.pid, signal.SIGSTOP)
    mode.workspace.run("stop", "stubborn", "--grace", 0)
    job.check_gone(143)


def test_after_sigkill_of_shim_and_guard_dgxrun_cleans_up(local):
    """The sweep of the agent inside dgxrun leaves dgxrun's own helper alone, which removes the folder."""
    program = local.workspace.write("idle.sh", "echo $$; exec sleep 100\n")
    job = local.workspace.start(*local.launch_args(1), "--max-restarts", 0, "--no-python", "sh", program)
    shim, guard, _ = ancestry(int(job.wait_line(r"\] (\d+)", START_S).group(1)))
    os.kill(guard.pid, signal.SIGSTOP)  # so that it cannot act between the two
    os.kill(shim.pid, signal.SIGKILL)
    os.kill(guard.pid, signal.SIGKILL)
    assert job.wait(START_S) == 70, job.transcript()
    assert os.listdir(local.workspace.env["DGXRUN_RUN_DIR"]) == []


@pytest.mark.parametrize("mode", ["local", "net"], indirect=True)
def test_the_next_agent_removes_what_nobody_else_can(mode, leaks):
    """The agent, its shim, its guard and its ranks are killed at once. The agent of the next local job knows nothing of
    this one; an agent of a cluster that is started again does."""
    job = Job(mode, leaks, "wait")
    _, _, agent = ancestry(job.rank_pids[1])
    everything = [agent, *descendants(agent.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees the end of another
        for one in everything:
            os.kill(one.pid, number)
    wait_gone(everything, PROMPT_S)
    if mode.name == "local":
        shutil.rmtree(mode.workspace.run_dir)
        os.mkdir(mode.workspace.run_dir, mode=0o700)
        mode.workspace.run(*mode.launch_args(1), "--no-python", "true")
        job.check_gone(None)
    else:
        mode.start_agent("node2")
        job.check_gone(None, seconds=mode.fence_s, end_seconds=mode.fenced_s)
