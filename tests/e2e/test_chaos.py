"""Kills controller, agents, shims, guards, writers and ranks of running jobs at random moments, cuts nodes off and
freezes daemons. Whatever is done: no two attempts of a job live at one instant, no rank is there twice, no accepted
submit is lost and none makes two jobs, the status is right again, no line of output is lost or doubled (but what a killed
writer or shim had in hand, and that is counted), every job ends with the right code, and nothing is left.

DGXRUN_CHAOS_KILLS, DGXRUN_CHAOS_SEED: how many kills, and which. A failure prints the seed and what was done; the same
seed makes the same choices, at about the same moments.
"""

import glob
import json
import os
import re
import time

import pytest

from harness.chaos import Chaos, beats, check_beats
from harness.modes import PROMPT_S, NetMode
from harness.waiting import wait_until
from harness.workspace import RANKS

pytestmark = pytest.mark.root
KILLS = int(os.environ.get("DGXRUN_CHAOS_KILLS", "40"))
SEED = int(os.environ.get("DGXRUN_CHAOS_SEED", "1"))
PROGRAM = os.path.join(RANKS, "chaos_rank.py")
LINES_A_STEP = 5
LIVE_JOBS = 4
SUBMIT_EVERY_S = 0.4
CALM_AFTER = 14  # kills between two looks at a cluster that is whole again
SETTLE_S = 60  # for a job to run again after all that was done to it: fences, and restarts that slow down
END_S = 90
NOTE = re.compile(r"\[dgxrun: (\d+) bytes are missing here: [^\]]*\]\n")
SUPERVISED = {"supervisor_lost": 70, "node_lost": 69, "fenced": 69}


class ChaosMode(NetMode):
    heartbeat_ms, node_lease_ms, isolation_ms = 200, 2500, 4000


class Job:
    """One submit. `end`: what its ranks do at last; a job that waits is stopped by the test."""

    def __init__(self, chaos, workspace, number):
        self.chaos, self.workspace, self.random = chaos, workspace, chaos.random
        self.name = f"chaos{number}"
        self.end = self.random.choice(["0", "0", "7", "wait"])
        self.nodes = self.random.choice([1, 2, 2, 3])
        self.per_node = self.random.choice([1, 2])
        self.detached = self.random.random() < 0.3
        self.restarts = 30
        self.id, self.code, self.stop, self.stopped = None, None, None, False
        self.begin = time.monotonic()
        steps = self.random.randrange(20, 150)
        chaos.say(f"submit {self.name}: {self.nodes}x{self.per_node}, {steps} steps, end {self.end}")
        self.dgxrun = workspace.start(
            *(["--detach"] if self.detached else []), "-n", self.nodes, "-g", self.per_node, "--name", self.name,
            "--grace", "1s", "--max-restarts", self.restarts if self.end != "7" else 1, PROGRAM, workspace.cwd, steps,
            self.end,
        )
        if self.end == "wait":
            chaos.later(self.random.uniform(0.5, 6), self.ask_to_stop)

    def ask_to_stop(self):
        self.chaos.say(f"stop {self.name}")
        self.stopped = True
        self.stop = self.workspace.start("stop", self.name)

    def look(self):
        """True once the job has been asked for its end and has it. What was refused is tried again."""
        if self.id is None:
            found = re.search(r"\(job (\S+?)\)", self.dgxrun.stderr)
            self.id = found.group(1) if found else None
        if self.stop is not None and self.stop.popen.poll() is not None:
            code = self.stop.popen.returncode
            assert code in (0, 69) or code == 64 and self.id is None, self.stop.transcript()
            again = code == 69  # nobody answered
            self.stop = self.workspace.start("stop", self.name) if again else None
        if self.code is None and self.dgxrun.popen.poll() is not None:
            self.code = self.dgxrun.popen.returncode
            self.chaos.say(f"dgxrun of {self.name} ended with {self.code}")
        return self.code is not None and self.stop is None

    def status(self):
        """As `status` has it; None while nobody answers or there is no such job."""
        done = self.workspace.run("status", self.name, "--json", expect=None)
        if done.returncode != 0:
            return None
        return json.loads(done.stdout)


def accepted(job):
    """A submit that nobody confirmed (the controller was away) may have made a job or not."""
    return job.id is not None


def check_right_again(chaos, jobs):
    """With all daemons back, status has what /proc has, for every job."""
    def right(job):
        chaos.tick()
        status = job.status()
        if status is None:
            return job.code is not None and not accepted(job)
        if status["state"] in ("succeeded", "failed", "stopped"):
            return not chaos.world.of(status["job"])
        if status["state"] != "running":
            return False
        shown = {r["rank"]: r["pid"] for n in status["nodes"] for r in n["ranks"] if r["state"] == "running"}
        chaos.world.look()
        living = {r.rank: r.process.pid for r in chaos.world.of(status["job"]) if r.attempt == status["attempt"]}
        return shown == living

    for job in jobs:
        wait_until(lambda job=job: job.look() and job.code is not None and not accepted(job) or right(job), SETTLE_S,
                   lambda job=job: f"{job.name}: status {job.status()}, living {chaos.world.of(job.id)}")


def check_result(chaos, job, status):
    hits = chaos.hits.get(status["job"], 0)
    calm = hits == 0 and not any(job.begin - 5 < t for t in chaos.node_trouble)
    cause = (status["why"] or {}).get("cause")
    what = f"{job.name}: {status}\n{job.dgxrun.transcript()}"
    if job.end == "0":
        assert (status["state"], status["exit_code"]) == ("succeeded", 0), what
    elif job.end == "wait":
        assert (status["state"], status["exit_code"]) == ("stopped", 143), what
    elif job.nodes * job.per_node == 1:  # there is no rank 1
        assert (status["state"], status["exit_code"]) in (("succeeded", 0), ("failed", SUPERVISED.get(cause)),
                                                          ("failed", 137)), what
    else:
        assert status["state"] == "failed", what
        expected = {"exit_code": 7, "signal": 137, **SUPERVISED}[cause]
        assert status["exit_code"] == expected, what
        assert cause == "exit_code" or not calm, what
    assert status["restarts"] == status["attempt"], what
    assert status["restarts"] <= (30 if job.end != "7" else 1), what
    if calm and job.end != "7":
        assert status["restarts"] == 0, f"restarted without a cause: {what}"
    if not job.detached:
        assert job.code == status["exit_code"], what


def check_output(chaos, job, status, found, log_root):
    """Every line that a rank says it wrote is in the file, once and in order."""
    for beat in (one for one in found if one.job == status["job"]):
        (path,) = glob.glob(f"{log_root}/*/logs/{beat.job}/attempt_{beat.attempt}/rank_{beat.rank}.out")
        node = os.path.relpath(path, log_root).split("/")[0]
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        place = (beat.job, beat.attempt, node)
        whole = place not in chaos.gaps and place not in chaos.short
        kept = NOTE.sub("", text)
        numbers = [int(n) for n in re.findall(rf"^{beat.attempt} {beat.rank} (\d+) of {beat.job}$", kept, re.MULTILINE)]
        assert numbers == sorted(set(numbers)), f"{path}: doubled or out of order\n{text[-2000:]}"
        if place not in chaos.gaps:
            assert numbers == list(range(len(numbers))), f"{path}: a gap that nobody made\n{text[-2000:]}"
            assert NOTE.search(text) is None, path
        if whole:
            at_most = beat.lines + LINES_A_STEP
            assert beat.lines <= len(numbers) <= at_most, f"{path}: {len(numbers)} lines, not {beat.lines} to {at_most}"


def check_console(chaos, job):
    """No line twice on the console of a client, however often it lost its controller."""
    seen = re.findall(r"^\[\S+:\d+\] (\d+) (\d+) (\d+) of \S+$", job.dgxrun.stdout, re.MULTILINE)
    by_rank = {}
    for attempt, rank, number in seen:
        by_rank.setdefault((attempt, rank), []).append(int(number))
    for key, numbers in by_rank.items():
        assert numbers == sorted(set(numbers)), f"{job.name}: attempt and rank {key}: {numbers}"


def storm(chaos, mode, kills):
    """Returns all jobs, ended or not."""
    workspace, jobs, calm_at, strike_at = mode.workspace, [], CALM_AFTER, time.monotonic() + 1
    submit_at = 0
    while chaos.kills < kills:
        chaos.tick()
        assert not chaos.world.broken, chaos.world.broken
        live = [job for job in jobs if not job.look()]
        if "controller" in chaos.down and submit_at < time.monotonic() + SUBMIT_EVERY_S:
            submit_at = time.monotonic() + SUBMIT_EVERY_S  # a new one is refused at once while it is away
        if len(live) < LIVE_JOBS and time.monotonic() > submit_at:
            submit_at = time.monotonic() + SUBMIT_EVERY_S
            jobs.append(Job(chaos, workspace, len(jobs)))
            if chaos.random.random() < 0.4:  # right into its submit, placement, launch
                chaos.later(chaos.random.uniform(0.05, 0.6), lambda: chaos.strike(chaos.random.choice(["controller", "agent"])))
        if time.monotonic() > strike_at:
            chaos.strike()
            if chaos.random.random() < 0.3:  # and again, into what that set off
                chaos.later(chaos.random.uniform(0, 0.1), chaos.strike)
            strike_at = time.monotonic() + chaos.random.uniform(0.05, 1.2)
        if chaos.kills > calm_at:
            calm_at = chaos.kills + CALM_AFTER
            chaos.heal()
            check_right_again(chaos, live)
    return jobs


def run_chaos(mode, leaks, chaos, kills):
    jobs = storm(chaos, mode, kills)
    chaos.heal()
    check_right_again(chaos, [job for job in jobs if not job.look()])
    for job in jobs:
        def ended(job=job):
            chaos.tick()
            if not job.look():
                return False
            if not accepted(job):
                return True
            if job.end == "wait" and not job.stopped:
                return False
            status = job.status()
            return status is not None and status["state"] in ("succeeded", "failed", "stopped")

        wait_until(ended, END_S, lambda job=job: f"{job.name}: {job.status()}\n{job.dgxrun.transcript()}")
    assert not chaos.world.broken, chaos.world.broken
    listed = mode.workspace.json("status", "--all")
    found = beats(mode.workspace.cwd)
    check_beats(found)
    for job in jobs:
        mine = [one for one in listed if one["name"] == job.name]
        assert len(mine) <= 1, f"one submit, two jobs: {mine}"
        if accepted(job):
            assert len(mine) == 1, f"accepted and lost: {job.name} {job.dgxrun.transcript()}"
        else:
            assert job.code == 69, job.dgxrun.transcript()
        if not mine or mine[0]["state"] not in ("succeeded", "failed", "stopped"):
            continue
        status = job.status()
        if accepted(job):
            check_result(chaos, job, status)
            check_console(chaos, job)
        check_output(chaos, job, status, found, mode.workspace.state)
    leaks.check_job_gone(mode, 2 * PROMPT_S)
    return jobs


def test_random_kills(workspace, leaks):
    mode = ChaosMode(workspace, nodes=3)
    chaos = Chaos(mode, PROGRAM, SEED)
    try:
        jobs = run_chaos(mode, leaks, chaos, KILLS)
        print(f"{chaos.kills} kills, {len(jobs)} jobs, {sum(map(accepted, jobs))} accepted")
    except BaseException:
        print(f"DGXRUN_CHAOS_SEED={SEED} DGXRUN_CHAOS_KILLS={KILLS}", *chaos.log, sep="\n")
        raise
    finally:
        chaos.heal()
        mode.close()

