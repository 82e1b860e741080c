"""The controller is killed right before each flush of its log, and each message that it sends, while a job is
submitted, launched, restarted and stopped; another takes over. Each of these is finished exactly once: one job, each
rank of each attempt started once, one restart, stopped with the right code.

DGXRUN_MIDWAY=all: every place (some minutes); else each flush and every SENDS_STEP-th message.
"""

import collections
import os
import re

import pytest

from harness.process import Running
from harness.upgrade import built_tests
from harness.waiting import wait_until

START_S = 30
SENDS_STEP = 11
MOST = 400  # places of one kind; a job has far fewer
# Attempt 0 fails as soon as both ranks are there; attempt 1 waits until it is stopped.
PROGRAM = """
import os, signal, sys
attempt, rank, folder = os.environ["DGXRUN_ATTEMPT"], os.environ["RANK"], sys.argv[1]
with open(os.path.join(folder, "starts"), "a") as file: file.write(f"{attempt}.{rank}\\n")
while attempt == "0":
    if rank == "0" and open(os.path.join(folder, "starts")).read().count("\\n") >= 2: sys.exit(3)
    signal.sigtimedwait([signal.SIGUSR1], 0.01)
signal.pause()
"""


class Cluster:
    """A controller and two agents on unix sockets; the controller comes back at once when it is killed."""

    node_names = ("node1", "node2")

    def __init__(self, workspace):
        self.workspace = workspace
        self.daemons, self.controller, self.deaths = [], None, 0
        socket = os.path.join(workspace.root, "c.sock")
        self.file = os.path.join(workspace.root, "cluster.toml")
        head = f'[cluster]\nname = "midway"\ncontroller = "unix:{socket}"\n'
        self._write(self.file, head)
        self.controller_file = self._write(
            os.path.join(workspace.root, "controller.toml"),
            head + f'[controller]\nstate_dir = "{workspace.state}/controller"\nunix_socket = "{socket}"\n')
        workspace.env["DGXRUN_CLUSTER"] = self.file
        self.start_controller(None)
        for node in self.node_names:
            base = os.path.join(workspace.state, node)
            path = self._write(
                os.path.join(workspace.root, f"{node}.toml"),
                head + f'[agent]\nname = "{node}"\nstate_dir = "{base}/state"\nrun_dir = "{workspace.run_dir}/{node}"\n'
                f'log_dir = "{base}/logs"\nallow_root = true\n')
            self.daemons.append(self._start("dgxrun-agent", path, None))
        wait_until(self.all_up, START_S, "both nodes up")

    @staticmethod
    def _write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _start(self, program, config, die_at):
        env = dict(self.workspace.env)
        if die_at:
            env["DGXRUN_TEST_DIE_AT"] = die_at
            env["LD_PRELOAD"] = os.path.join(built_tests(self.workspace), "libdie_at.so")
        running = Running([os.path.join(self.workspace.bin, program), "--config", config], env=env,
                          cwd=self.workspace.root, out_dir=self.workspace.out, name=f"d{len(self.workspace.running)}")
        self.workspace.running.append(running)
        return running

    def start_controller(self, die_at):
        self.controller = self._start("dgxrun-controller", self.controller_file, die_at)

    def replace_controller(self, die_at):
        self.controller.popen.terminate()
        self.controller.wait(START_S)
        self.deaths = 0
        self.start_controller(die_at)

    def tend(self):
        """Brings the controller back if it was killed."""
        code = self.controller.popen.poll()
        if code is not None:
            assert code == -9, self.controller.transcript()
            self.deaths += 1
            self.start_controller(None)

    def all_up(self):
        self.tend()
        done = self.workspace.run("nodes", "--json", expect=None)
        return done.returncode == 0 and len(re.findall(r'"state": *"up"', done.stdout)) == len(self.node_names)

    def wait(self, condition, what):
        def tended():
            self.tend()
            return condition()

        return wait_until(tended, START_S, what)

    def close(self):
        for one in (*self.daemons, self.controller):
            one.popen.terminate()
        for one in (*self.daemons, self.controller):
            one.wait(START_S)


@pytest.fixture
def cluster(workspace, leaks):
    made = Cluster(workspace)
    yield made
    made.close()


def whole_life(cluster, name):
    """A job from submit to stop while the controller dies somewhere on the way."""
    workspace = cluster.workspace
    folder = workspace.path(name)
    os.mkdir(folder)
    starts = os.path.join(folder, "starts")

    def started():
        if not os.path.exists(starts):
            return []
        with open(starts, encoding="ascii") as file:
            return file.read().split()

    cluster.wait(cluster.all_up, "nodes up")
    program = workspace.write("midway.py", PROGRAM)
    argv = ["-n", 2, "--name", name, "--grace", "1s", "--max-restarts", 1, program, folder]
    jobs = [workspace.start(*argv)]

    def running():
        job = jobs[-1]
        # Killed before this client's first word reached it: nothing was asked for yet.
        if job.popen.poll() == 69 and "(job " not in job.stderr and not started():
            jobs.append(workspace.start(*argv))
        return len(started()) == 4

    cluster.wait(running, lambda: f"{started()}\n{jobs[-1].transcript()}\n{cluster.controller.transcript()}")
    stop = [workspace.start("stop", name)]

    def ended():
        if stop[-1].popen.poll() == 69:  # nobody was there to take it
            stop.append(workspace.start("stop", name))
        return jobs[-1].popen.poll() is not None and stop[-1].popen.poll() is not None

    cluster.wait(ended, lambda: f"{stop[-1].transcript()}\n{jobs[-1].transcript()}\n{cluster.controller.transcript()}")
    what = f"{jobs[-1].transcript()}\n{cluster.controller.transcript()}"
    assert stop[-1].popen.returncode == 0, stop[-1].transcript()
    assert jobs[-1].popen.returncode == 143, what
    assert collections.Counter(started()) == {f"{k}.{r}": 1 for k in (0, 1) for r in (0, 1)}, what
    cluster.wait(cluster.all_up, "nodes up")
    assert [job["state"] for job in workspace.json("status", "--all") if job["name"] == name] == ["stopped"], what
    status = workspace.status(name)
    assert (status["restarts"], status["exit_code"]) == (1, 143), status


@pytest.mark.parametrize("kind", ["flush", "send"])
def test_each_step_is_done_exactly_once(cluster, leaks, kind):
    step = 1 if kind == "flush" or os.environ.get("DGXRUN_MIDWAY") == "all" else SENDS_STEP
    deaths = 0
    for place in range(1, MOST, step):
        cluster.replace_controller(f"{kind}:{place}")
        whole_life(cluster, f"{kind}{place}")
        if cluster.deaths == 0:
            break  # the whole life has fewer such steps
        deaths += 1
    else:
        pytest.fail(f"a job of more than {MOST} steps")
    assert deaths >= 5
    print(f"{deaths} places")
