"""How many operations a launch and a restart take. Times are noisy, counts are not: a fork, a flush or a
message more than these bounds is a change that somebody should have meant.

Counted with strace, which also slows everything down; so nothing here is about time.
"""

import collections
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness.process import descendants, executable
from harness.upgrade import UpgradeMode
from harness.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")

# Of a local launch, beside its ranks: the janitor, the guard, the shim and its writer.
SUPERVISORS = 4
EXECS = 2  # dgxrun and dgxrun-shim; the other processes are forks of them
# Threads of dgxrun in local mode: engine, controller's loop, agent, tails, and short-lived ones for the checks
# and for making folders, which may hang on a file server.
MAX_THREADS = 8
# All system calls of a local launch, and those that each rank adds (half of them set its signals back to their
# defaults). A third above what is needed today: 1,300 and 205.
MAX_CALLS, MAX_CALLS_PER_RANK = 1750, 280
# Files that are taken away: sockets, temporaries, the run folder. Each rank has none of its own but its logs.
MAX_UNLINKS, MAX_UNLINKS_PER_RANK = 60, 4
# What the daemons of 2 nodes do for a launch, and what a restart adds.
# Flushes (32 and 28 today): the controller's for the environment (file and folder), and a commit each for what it
# decides; what comes while one is written shares the next. An agent's for the highest attempt, and for each report,
# stored and dropped. Sends (94 and 90): each message of the agents' streams, HTTP/2's own frames, the client's calls,
# heartbeats meanwhile. All calls (3,000 and 3,000): with those that threads of gRPC wake each other with, which
# depends on the machine.
MAX_IN_A_CLUSTER = {"flushes": (44, 36), "sends": (160, 140), "calls": (6000, 5000)}
# Kind of message, how many a launch on 2 nodes takes, and how many a restart adds.
EXACT_MESSAGES = [
    ("prepare", 2, 2), ("report.prepared", 2, 2), ("launch", 2, 2), ("report.started", 2, 2), ("report.exited", 2, 2),
    ("report.gone", 2, 2), ("forget", 2, 0), ("tail", 2, 2), ("tail_cancel", 0, 0), ("hello", 0, 0), ("welcome", 0, 0),
]
MAX_STATUS_MESSAGES = 10  # placed, 2 prepared, launched, 2 started, 2 exited, gone, ended
KNOWN_MESSAGES = {
    *((method, way, "-") for method in ("Info", "Submit", "Watch", "Logs", "Output") for way in ("request", "reply")),
    *(("Connect", "request", kind) for kind in ("heartbeat", "report.prepared", "report.started", "report.exited", "report.gone")),
    *(("Connect", "reply", kind) for kind in ("answer", "ack", "prepare", "launch", "stop", "forget", "tail", "committee")),
}
# Wakeups of all threads of a process in a minute while its job runs and nothing happens. An agent says a heartbeat a
# second, which passes three threads in the process of a local job; the engine's clock ticks four times a second.
# Over gRPC a message wakes several of its threads (seen: 1,400 a minute in an agent), and its timers tick.
# The guard, the shim, the writer and the janitor sleep; with a lease the shim hears of it once a second.
MAX_IDLE_WAKEUPS = {"dgxrun": 800, "dgxrun-agent": 2500, "dgxrun-controller": 2500, "dgxrun-shim": 150}
IDLE_WINDOW_S = 4

FORKS = ("clone", "clone3", "fork", "vfork")
FLUSHES = ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync")
CALL = re.compile(r"^(\d+) +([a-z_0-9]+)\(")
LOADED = "prlimit64"  # the C library's first call once all libraries are in
# Rank 0 fails once, when rank 1 has started: one that is told to stop before its exec does less.
FAIL_ONCE = ('if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then '
             'if [ "$RANK" = 0 ]; then read _ < meet; exit 1; else echo > meet; fi; fi')
WAIT_ONCE = '; if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exec sleep 1000; fi'  # the others, until they are stopped


class Counts:
    """Of a strace log, from an offset on, without what the dynamic linker does: that depends on the build."""

    def __init__(self, path, start=0):
        self.calls = collections.Counter()
        self.threads = 0
        self.internet = 0
        loading = set()
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(start)
            for line in file:
                found = CALL.match(line)
                if not found:
                    continue  # the second half of a call, a signal, an exit
                pid, name = found.groups()
                if pid in loading:
                    if name == LOADED:
                        loading.discard(pid)
                    continue
                if name == "execve":
                    loading.add(pid)
                if name in FORKS and "CLONE_THREAD" in line:
                    self.threads += 1
                    continue
                self.calls[name] += 1
                if name == "connect" and "AF_INET" in line:
                    self.internet += 1

    def of(self, *names):
        return sum(self.calls[name] for name in names)

    def total(self):
        return self.calls.total() + self.threads


def traced(workspace, name, *args, expect=0):
    """Runs dgxrun under strace to its end."""
    log = os.path.join(workspace.out, name + ".strace")
    argv = ["strace", "-f", "-qq", "-s", "0", "-o", log, *workspace.dgxrun_argv(args)]
    done = subprocess.run(argv, env=workspace.env, cwd=workspace.cwd, stdin=subprocess.DEVNULL, timeout=120,
                          capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return Counts(log)


@pytest.fixture
def launches(workspace):
    return {
        ranks: traced(workspace, f"launch{ranks}", "-g", ranks, "--device", "cpu", "--no-python", "/bin/true")
        for ranks in (1, 2, 8)
    }


def test_local_launch(launches):
    for ranks, counts in launches.items():
        assert counts.of("execve") == EXECS + ranks
        assert counts.of(*FORKS) == SUPERVISORS + ranks
        assert counts.threads <= MAX_THREADS
        assert counts.of(*FLUSHES) == 0  # the log of a local job is on a tmpfs and dies with it
        assert counts.internet == 0
        assert counts.of("nanosleep", "clock_nanosleep") == 0  # nobody waits by the clock
        assert counts.of("unlink", "unlinkat", "rmdir") <= MAX_UNLINKS + MAX_UNLINKS_PER_RANK * ranks
        assert counts.total() <= MAX_CALLS + MAX_CALLS_PER_RANK * ranks
    # Linear in ranks: six more cost no more than six times what one may.
    assert launches[8].total() - launches[2].total() <= 6 * MAX_CALLS_PER_RANK


def test_local_restart(workspace):
    os.mkfifo(workspace.path("meet"))
    program = ["--no-python", "/bin/sh", "-c", FAIL_ONCE]
    ranks = 2
    once = traced(workspace, "once", "-g", ranks, "--device", "cpu", "--max-restarts", 0, *program, expect=1)
    twice = traced(workspace, "twice", "-g", ranks, "--device", "cpu", "--max-restarts", 1, *program)
    assert twice.of("execve") - once.of("execve") == 1 + ranks
    assert twice.of(*FORKS) - once.of(*FORKS) == (SUPERVISORS - 1) + ranks  # one janitor for all attempts
    assert twice.of(*FLUSHES) == 0
    assert twice.total() - once.total() <= MAX_CALLS + MAX_CALLS_PER_RANK * ranks


@pytest.fixture
def traced_cluster(workspace):
    """A dev cluster of 2 nodes; strace follows its daemons. Gives what a command made all of them do."""
    log = os.path.join(workspace.out, "cluster.strace")
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-s", "0", "-o", log, *workspace.dgxrun_argv(["dev", "up", "-n", "2"])],
        env=workspace.env, cwd=workspace.cwd, stdin=subprocess.DEVNULL,
    ) as strace:
        try:
            wait_until(lambda: nodes_up(workspace) == 2, 30, "a dev cluster of 2 nodes")

            def count(*args):
                start = os.path.getsize(log)
                workspace.run("-n", 2, "-g", 1, *args)
                return Counts(log, start)

            yield count
        finally:
            workspace.run("dev", "down")
            strace.wait(timeout=30)


def test_cluster_launch_and_restart(workspace, traced_cluster):
    """2 nodes, a rank each."""
    os.mkfifo(workspace.path("meet"))
    launch = ["--no-python", "/bin/true"]
    restart = ["--max-restarts", 1, "--no-python", "/bin/sh", "-c", FAIL_ONCE]
    traced_cluster(*launch)  # pays for first times
    once = traced_cluster(*launch)
    twice = traced_cluster(*restart)
    for attempts, counts in ((1, once), (2, twice)):
        assert counts.of("execve") == attempts * 2 * (1 + 1)  # a shim and a rank per node
        assert counts.of(*FORKS) == attempts * 2 * (SUPERVISORS - 1 + 1)  # no janitor
        assert counts.internet == 0
    for what, of_launch, of_both in (("flushes", once.of(*FLUSHES), twice.of(*FLUSHES)),
                                     ("sends", once.of("sendmsg"), twice.of("sendmsg")),
                                     ("calls", once.total(), twice.total())):
        print(what, of_launch, of_both - of_launch)
        assert 0 < of_launch <= MAX_IN_A_CLUSTER[what][0], what
        assert 0 < of_both - of_launch <= MAX_IN_A_CLUSTER[what][1], what


class Messages(collections.Counter):
    """What passed between the controller and two agents and a client, by method, direction and kind."""

    def of(self, kind):
        return sum(count for (_, _, of), count in self.items() if of == kind)


def test_cluster_messages(workspace, leaks):
    """By kind: of a launch, and of a restart beside it. 2 nodes, a rank each."""
    os.mkfifo(workspace.path("meet"))
    mode = UpgradeMode(workspace, say=None)
    try:
        def run(*args):
            start = os.path.getsize(mode.wire_log)
            workspace.run("-n", 2, "-g", 1, *args)
            # The last of a job, to the client and to each node, may still be under way when the client ends.
            seen = lambda: Messages(message[:3] for message in mode.messages(start))  # noqa: E731
            wait_until(lambda: seen().of("forget") == 2, 10, "both nodes are told to forget the job")
            return seen()

        once = run("--no-python", "/bin/true")
        twice = run("--max-restarts", 1, "--no-python", "/bin/sh", "-c", FAIL_ONCE + WAIT_ONCE)
    finally:
        mode.close()
    for kind, launch, restart in EXACT_MESSAGES:
        assert (once.of(kind), twice.of(kind)) == (launch, launch + restart), (kind, once, twice)
    assert once.of("stop") == 0 and 1 <= twice.of("stop") <= 2, twice  # a node whose ranks are gone needs none
    reports = ("report.prepared", "report.started", "report.exited", "report.gone")
    for counts, attempts in ((once, 1), (twice, 2)):
        assert counts.of("ack") <= sum(map(counts.of, reports)), counts
        # One may have come before the count began.
        assert counts.of("answer") <= counts.of("heartbeat") + 2, counts
        for method in ("Info", "Submit", "Watch", "Logs"):
            assert counts[method, "request", "-"] == 1, (method, counts)
        assert counts["Submit", "reply", "-"] == 1
        # Each change of a job's status is said at most once; changes that come together are one.
        assert counts["Watch", "reply", "-"] <= attempts * MAX_STATUS_MESSAGES, counts
        # A tail per node and attempt, with one chunk for each of its rank's two files, which are empty.
        assert counts["Output", "request", "-"] == counts["Logs", "reply", "-"] == attempts * 2 * 2, counts
    assert set(once) | set(twice) <= KNOWN_MESSAGES, set(once) | set(twice)


def nodes_up(workspace):
    return workspace.run("nodes", "--cluster", "dev", expect=None).stdout.count(" up")


def wakeups(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
            total += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", file.read(), re.M).group(1))
    return total


@pytest.mark.parametrize("place", ["local", "dev"])
def test_idle_job(workspace, place):
    if place == "dev":
        workspace.run("dev", "up", "-n", 2)
    where = ["-g", 2, "--device", "cpu"] if place == "local" else ["-n", 2, "-g", 1]
    running = workspace.start(*where, "--no-python", "/bin/sleep", "1000")
    try:
        wait_until(lambda: sum(executable(one.pid) == "sleep" for one in descendants()) == 2, 30, "2 ranks")
        processes = [one for one in descendants() if executable(one.pid) in MAX_IDLE_WAKEUPS]
        before = {one.pid: wakeups(one.pid) for one in processes}
        end = time.monotonic() + IDLE_WINDOW_S
        wait_until(lambda: time.monotonic() >= end, IDLE_WINDOW_S + 5, "a window of idle time")
        seen = collections.defaultdict(list)
        for one in processes:
            seen[executable(one.pid)].append((wakeups(one.pid) - before[one.pid]) * 60 / IDLE_WINDOW_S)
        assert set(seen) >= ({"dgxrun", "dgxrun-shim"} if place == "local" else set(MAX_IDLE_WAKEUPS))
        for name, in_a_minute in seen.items():
            assert max(in_a_minute) <= MAX_IDLE_WAKEUPS[name], name
    finally:
        running.signal(signal.SIGTERM)
        running.wait(30)
        if place == "dev":
            workspace.run("dev", "down")
