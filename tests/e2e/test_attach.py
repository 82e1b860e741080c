"""Leave a job and come back: --detach, attach, Ctrl-C, hang-up, a controller that is away meanwhile."""

import os
import re
import signal
import subprocess

import pytest

from harness.process import process, wait_gone
from harness.waiting import wait_until
from test_survival import kill_and_bring_back
from test_trust import SharedMachine, shared  # noqa: F401 (a fixture)

START_S = 20
# Counts up to what the file `limit` says, waits while there is nothing to do, ends when it says "end".
COUNTER = """
import os, signal, sys
done, rank = 0, int(os.environ["RANK"])
while True:
    try:
        with open(os.path.join(sys.argv[1], "limit")) as file:
            word = file.read().strip()
    except FileNotFoundError:
        word = ""
    if word == "end":
        break
    while word and done < int(word):
        done += 1
        print(f"line {done} of rank {rank}", flush=True)
    signal.sigtimedwait([signal.SIGUSR1], 0.01)
sys.exit(int(sys.argv[2]))
"""


class Counter:
    """A detached job of two ranks whose output the test turns on and off."""

    def __init__(self, mode, code=0, grace="1s"):
        self.workspace = mode.workspace
        self.program = self.workspace.write("count.py", COUNTER)
        done = self.workspace.run(
            *mode.launch_args(2), "--detach", "--name", "count", "--max-restarts", 0, "--grace", grace,
            self.program, self.workspace.cwd, code,
        )
        self.job = done.stdout.removesuffix("\n")
        assert re.fullmatch(r"[0-9a-f]{6}-\d+", self.job), done.transcript()
        assert re.search(rf"^dgxrun: 2 nodes × 1 = 2 ranks on .* \(job {self.job}\), detached", done.stderr, re.M)

    def say(self, word):
        path = self.workspace.path("limit")
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(word))
        os.replace(path + ".new", path)

    def written(self, count):
        """Both ranks have written so many lines into their files."""
        def look():
            return self.workspace.run("logs", self.job, expect=None).stdout.count(f"line {count} of rank") == 2

        wait_until(look, START_S, f"{count} lines of each rank")

    def attach(self):
        client = self.workspace.start("attach", self.job)
        client.wait_line(f"job {self.job}", START_S, stream="stderr")
        return client


def numbers(text, rank):
    return [int(found) for found in re.findall(rf"^\[[^:]+:{rank}\] line (\d+) of rank {rank}$", text, re.M)]


CLUSTER_MODES = pytest.mark.parametrize("mode", ["dev", "net"], indirect=True)


@CLUSTER_MODES
def test_detach_and_attach(mode):
    """The last lines so far, then each line once, the summary, and the job's own exit code; to every client."""
    job = Counter(mode, code=7)
    workspace = mode.workspace
    job.say(100)
    job.written(100)
    first, second = job.attach(), job.attach()
    for client in (first, second):
        client.wait_line("line 100 of rank 1", START_S)
    job.say(200)
    for client in (first, second):
        client.wait_line("line 200 of rank 0", START_S)
        client.wait_line("line 200 of rank 1", START_S)
    job.say("end")
    for client in (first, second):
        assert client.wait(START_S) == 7, client.transcript()
        for rank in (0, 1):
            assert numbers(client.stdout, rank) == list(range(96, 201)), client.transcript()
        assert re.search(rf"^dgxrun: 2 nodes × 1 = 2 ranks on {mode.name} \(job {job.job}\), running", client.stderr, re.M)
        assert re.search(rf"^dgxrun: job {job.job} failed after", client.stderr, re.M)
    ended = workspace.run("attach", "count", expect=7)
    assert ended.stdout == "" and f"dgxrun: job {job.job} failed after" in ended.stderr


@CLUSTER_MODES
def test_ctrl_c_of_an_attached_client_stops_the_job(mode):
    job = Counter(mode, grace="1000s")
    workspace = mode.workspace
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    workspace.write("deaf.py", stubborn + COUNTER)
    deaf = Counter.__new__(Counter)  # a second job, of ranks that do not hear SIGTERM
    deaf.workspace = workspace
    deaf.job = workspace.run(
        *mode.launch_args(2), "--detach", "--grace", "1000s", workspace.path("deaf.py"), workspace.cwd, 0
    ).stdout.strip()
    wait_until(lambda: workspace.status(deaf.job)["state"] == "running", START_S, "the second job runs")

    client = job.attach()
    client.signal(signal.SIGINT)
    assert client.wait(START_S) == 130, client.transcript()
    assert workspace.status(job.job)["state"] == "stopped"

    job.say(1)
    client = deaf.attach()
    client.wait_line("(?s)line 1 of.*line 1 of", START_S)  # so SIGTERM is ignored by now
    client.signal(signal.SIGINT)
    client.wait_line("Ctrl-C: stopping", 5, stream="stderr")
    client.signal(signal.SIGINT)
    assert client.wait(START_S) == 130, client.transcript()
    assert workspace.status(deaf.job)["state"] == "stopped"


@CLUSTER_MODES
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_hang_up_and_death_of_a_client_leave_the_job(mode, number):
    """Of the client that started it, and of one that came later."""
    workspace = mode.workspace
    program = workspace.write("count.py", COUNTER)
    first = workspace.start(*mode.launch_args(2), "--name", "count", program, workspace.cwd, 3)
    job = Counter.__new__(Counter)
    job.workspace = workspace
    job.job = first.wait_line(r"\(job ([0-9a-f]{6}-\d+)\)", START_S, stream="stderr").group(1)
    wait_until(lambda: workspace.status(job.job)["state"] == "running", START_S, "running")
    first.signal(number)
    assert first.wait(5) == (129 if number == signal.SIGHUP else -number), first.transcript()
    second = job.attach()
    job.say(5)
    second.wait_line("(?s)line 5 of.*line 5 of", START_S)
    second.signal(number)
    second.wait(5)
    assert workspace.status(job.job)["state"] == "running"
    third = job.attach()
    job.say("end")
    assert third.wait(START_S) == 3, third.transcript()


@CLUSTER_MODES
def test_a_controller_that_is_away(mode):
    """attach and logs -f go on where they were: no line is lost, none comes twice."""
    job = Counter(mode)
    workspace = mode.workspace
    job.say(50)
    job.written(50)
    client, logs = job.attach(), workspace.start("logs", "-f", job.job)
    for one in (client, logs):
        one.wait_line("line 50 of rank 0", START_S)
        one.wait_line("line 50 of rank 1", START_S)
    kill_and_bring_back(mode, "controller")
    job.say(90)  # some of it maybe while nobody is there to hear
    for one in (client, logs):
        one.wait_line("line 90 of rank 0", START_S)
        one.wait_line("line 90 of rank 1", START_S)
    job.say("end")
    assert client.wait(START_S) == 0, client.transcript()
    assert logs.wait(START_S) == 0, logs.transcript()
    for rank in (0, 1):
        assert numbers(logs.stdout, rank) == list(range(1, 91)), logs.transcript()
        assert numbers(client.stdout, rank) == list(range(46, 91)), client.transcript()
    assert "not reachable" in client.stderr and "answers again" in client.stderr


def test_logs_follow_a_local_job_to_its_last_line(local):
    """Its controller ends with it; what was still on its way comes from the files."""
    workspace = local.workspace
    program = workspace.write("count.py", COUNTER)
    job = Counter.__new__(Counter)
    job.workspace = workspace
    dgxrun = workspace.start("-g", 2, "--name", "count", program, workspace.cwd, 0)
    job.say(10)
    dgxrun.wait_line("(?s)line 10 of.*line 10 of", START_S)
    follower = workspace.start("logs", "-f", "count")
    follower.wait_line("(?s)line 10 of.*line 10 of", START_S)
    denied = workspace.run("attach", "count", expect=64)
    assert len(denied.stderr.splitlines()) == 1 and "dgxrun logs -f" in denied.stderr
    job.say(20000)
    dgxrun.wait_line("line 20000 of", START_S)
    job.say("end")
    assert dgxrun.wait(START_S) == 0
    assert follower.wait(START_S) == 0, follower.transcript()
    for rank in (0, 1):
        assert numbers(follower.stdout, rank) == list(range(1, 20001))


def test_detach_needs_a_cluster(local):
    workspace = local.workspace
    workspace.write("x.py", "print('ran')\n")
    done = workspace.run("-g", 2, "--detach", "x.py", expect=64)
    assert len(done.stderr.splitlines()) == 1 and "dgxrun dev up" in done.stderr and done.stdout == ""


@pytest.mark.root
def test_somebody_elses_job(shared):  # noqa: F811
    workspace = shared.workspace
    program = os.path.join(shared.public, "wait.py")
    with open(program, "w", encoding="ascii") as file:
        file.write("import signal; print('ready'); signal.pause()\n")
    job = shared.as_nobody("--cluster", shared.client, "-n", 1, "--detach", program)
    assert job.wait(START_S) == 0, job.transcript()
    name = job.stdout.strip()
    wait_until(
        lambda: workspace.status(name, "--cluster", shared.client)["state"] == "running", START_S, "it runs"
    )
    rank = process(workspace.ranks(name, "--cluster", shared.client)[0]["pid"])
    denied = subprocess.run(
        ["setpriv", "--reuid", "1", "--regid", "1", "--clear-groups",
         *workspace.dgxrun_argv(["attach", name, "--cluster", shared.client])],
        env={**workspace.env, "HOME": "/", "DGXRUN_STATE_DIR": "/nonexistent", "DGXRUN_RUN_DIR": "/nonexistent"},
        cwd="/", capture_output=True, text=True, timeout=START_S, check=False,
    )
    assert denied.returncode == 77, denied.stdout + denied.stderr
    assert len(denied.stderr.splitlines()) == 1 and "belongs to nobody" in denied.stderr
    assert rank.alive()
    stop = shared.as_nobody("stop", name, "--cluster", shared.client)
    assert stop.wait(START_S) == 0, stop.transcript()
    wait_gone([rank], START_S)
