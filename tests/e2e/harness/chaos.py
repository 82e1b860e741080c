"""Kills, freezes and cuts off what a net cluster consists of, at moments that a seed chooses, and looks all the time
that what must hold does hold.

What is done to it is undone after a while: daemons are started again, links mended, frozen processes woken. At most
one node is cut off at a time, and never for good. A frozen shim is left out: it is what enforces the lease, so
its ranks would outlive it.
"""

import dataclasses
import heapq
import os
import random
import re
import signal
import time

from harness.process import Process, cmdline, descendants, executable, parent, stat
from harness.workspace import check_output

# What ends an attempt: a job is hit so only a few times, since failures in a row slow its restarts down.
FATAL = ("rank", "shim", "guard")
WEIGHTS = {"rank": 4, "shim": 2, "guard": 2, "writer": 3, "controller": 3, "agent": 4, "freeze": 2, "cut": 1}
CUTS = ("link", "deaf", "mute", "both")
NODE_LEVEL_S = 1.0  # an agent away for longer may be taken for a lost node on a loaded machine


@dataclasses.dataclass
class RankProcess:
    process: Process
    job: str
    attempt: int
    rank: int
    node: str


class World:
    """The cluster's processes below pytest, looked at again and again. `broken`: what should never be."""

    def __init__(self, program):
        self.program = program
        self.known = {}  # Process -> RankProcess, or None for what is no rank
        self.ranks = []
        self.broken = []

    def look(self):
        now = descendants()
        self.known = {one: self.known[one] for one in now if one in self.known}
        for one in now:
            if one not in self.known:
                self.known[one] = self._identify(one)
                if self.known[one] is False:  # between fork and exec: looked at again
                    del self.known[one]
        self.ranks = [found for found in self.known.values() if found]
        for a in self.ranks:
            for b in self.ranks:
                # `a` was seen before and lives after `b` was seen: they lived together.
                if a.job == b.job and a.attempt < b.attempt and a.process.alive() and b.process.alive():
                    self.broken.append(f"two attempts live: {a} and {b}")
        for found in self.ranks:
            same = [o for o in self.ranks if (o.job, o.attempt, o.rank) == (found.job, found.attempt, found.rank)]
            if len(same) > 1 and all(o.process.alive() for o in same):
                self.broken.append(f"one rank twice: {same}")

    def _identify(self, one):
        words = cmdline(one.pid)
        if self.program not in words or "python" not in executable(one.pid):
            return None if executable(one.pid) not in ("", "dgxrun-shim") else False
        try:
            if executable(parent(one).pid) != "dgxrun-shim":
                return None  # a rank's child that has not yet become another program
            with open(f"/proc/{one.pid}/environ", "rb") as file:
                env = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
            return RankProcess(one, env[b"DGXRUN_JOB_ID"].decode(), int(env[b"DGXRUN_ATTEMPT"]), int(env[b"RANK"]),
                               env[b"DGXRUN_NODE"].decode())
        except (OSError, KeyError, AssertionError):
            return None  # gone, or the dgxrun that submits it

    def of(self, job):
        return [rank for rank in self.ranks if rank.job == job and rank.process.alive()]


def supervisors(rank):
    """{"shim", "guard", "writer"} of a living rank."""
    try:
        shim = parent(rank.process)
        guard = parent(shim)
    except AssertionError:
        return {}
    if executable(shim.pid) != "dgxrun-shim" or executable(guard.pid) != "dgxrun-shim":
        return {}
    found = {"shim": shim, "guard": guard}
    for one in descendants(shim.pid):
        facts = stat(one.pid)
        if facts and facts["name"] == "dgxrun-writer" and facts["ppid"] == shim.pid:
            found["writer"] = one
    return found


class Chaos:
    """`strike()` does one thing; `tick()` does what is due and looks; `heal()` undoes everything at once."""

    def __init__(self, mode, program, seed):
        self.mode, self.random, self.world = mode, random.Random(seed), World(program)
        self.log = []  # what was done, for people
        self.begin = time.monotonic()
        self.due = []  # heap of (time, number, function, what it undoes)
        self.number = self.kills = 0
        self.down = set()  # daemons that are dead
        self.cut = None
        self.frozen = []
        # By job: what was done to it that may end an attempt, (attempt, node) whose output may have a gap or be short.
        self.hits, self.gaps, self.short = {}, set(), set()
        self.node_trouble = []  # times at which a node may have been taken for lost

    def say(self, text):
        self.log.append(f"{time.monotonic() - self.begin:7.2f} {text}")

    def later(self, seconds, function, undoes=None):
        self.number += 1
        heapq.heappush(self.due, (time.monotonic() + seconds, self.number, function, undoes))

    def tick(self):
        while self.due and self.due[0][0] <= time.monotonic():
            heapq.heappop(self.due)[2]()
        self.world.look()

    def heal(self):
        """All that was done is undone, in its order; then every node is up again."""
        while any(undoes for *_, undoes in self.due):
            due, self.due = sorted(self.due), []
            for at, number, function, undoes in due:
                if undoes:
                    function()
                else:
                    heapq.heappush(self.due, (at, number, function, undoes))
        self.mode.wait_nodes(len(self.mode.node_names))
        self.say("healed")

    # What may be done

    def strike(self, what=None, job=None):
        """One kill, freeze or cut, of anything that is there. False: nothing was there to be hit."""
        what = what or self.random.choices(list(WEIGHTS), WEIGHTS.values())[0]
        if what == "controller":
            return self.kill_daemon("controller")
        if what == "agent":
            return self.kill_daemon(self.random.choice(self.mode.node_names))
        if what == "freeze":
            return self.freeze()
        if what == "cut":
            return self.cut_off()
        return self.kill_of_a_job(what, job)

    def kill_daemon(self, who):
        if who in self.down:
            return False
        running = self.mode.daemon_of[who]
        running.popen.kill()
        running.popen.wait()
        self.kills += 1
        self.down.add(who)
        away = self.random.choice([0, 0.05, 0.3, self.random.uniform(0.3, 1.5)])
        self.say(f"SIGKILL {who}, away for {away:.2f} s")
        if away > NODE_LEVEL_S and who != "controller":
            self.node_trouble.append(time.monotonic())
        self.later(away, lambda: self.bring_back(who), undoes=who)
        return True

    def bring_back(self, who):
        self.down.discard(who)
        if who == "controller":
            self.mode.start_controller()
        else:
            self.mode.start_agent(who)

    def kill_of_a_job(self, what, job):
        ranks = [one for one in self.world.ranks if one.process.alive() and job in (None, one.job)]
        if what in FATAL:
            ranks = [one for one in ranks if self.may_hit(one.job)]
        if not ranks:
            return False
        rank = self.random.choice(ranks)
        victim = rank.process if what == "rank" else supervisors(rank).get(what)
        if victim is None or not victim.alive():
            return False
        if what in FATAL:
            self.hits[rank.job] = self.hits.get(rank.job, 0) + 1
        if what in ("shim", "guard"):
            self.short.add((rank.job, rank.attempt, rank.node))
        if what == "writer":
            self.gaps.add((rank.job, rank.attempt, rank.node))
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills += 1
        self.say(f"SIGKILL {what} {victim.pid} of {rank.job}.{rank.attempt} on {rank.node}")
        return True

    def may_hit(self, job):
        return self.hits.get(job, 0) < 3

    def freeze(self):
        who = self.random.choice(["controller", *self.mode.node_names])
        if who in self.down:
            return False
        victim = self.mode.daemon_of[who].process
        seconds = self.random.uniform(0.1, 0.8)
        os.kill(victim.pid, signal.SIGSTOP)
        self.say(f"SIGSTOP {who} for {seconds:.2f} s")

        def wake():
            try:
                if victim.alive():
                    os.kill(victim.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

        self.later(seconds, wake, undoes=who)
        return True

    def cut_off(self):
        if self.cut:
            return False
        node, how = self.random.choice(self.mode.node_names), self.random.choice(CUTS)
        isolation = self.mode.isolation_ms / 1000
        seconds = self.random.choice([0.5, 1.5, self.random.uniform(isolation, isolation + 4)])
        self.cut = node
        self.node_trouble.append(time.monotonic())
        self.say(f"{node} is cut off ({how}) for {seconds:.2f} s")
        mend = drop(self.mode.network, node, how)

        def undo():
            mend()
            self.cut = None
            self.node_trouble.append(time.monotonic())
            self.say(f"{node} is mended")

        self.later(seconds, undo, undoes=node)
        return True


def drop(network, node, how):
    """Link down, or packets dropped: to the node ("deaf"), from it ("mute"), both. Returns what undoes it."""
    if how == "link":
        network.hub.ip("link", "set", f"to-{node}", "down")
        return lambda: network.hub.ip("link", "set", f"to-{node}", "up")
    host = network.hosts[node]
    rules = "add table inet cut;"
    for hook, side in (("input", "iifname"), ("output", "oifname")):
        if how in ("both", {"input": "deaf", "output": "mute"}[hook]):
            rules += f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; }};"
            rules += f"add rule inet cut {hook} {side} eth0 drop;"
    check_output(host.argv("nft", rules))
    return lambda: check_output(host.argv("nft", "delete table inet cut"))


@dataclasses.dataclass
class Beat:
    job: str
    attempt: int
    rank: int
    pid: int
    first: int
    last: int
    lines: int


def beats(folder):
    """What every rank that ever lived has left (ranks/chaos_rank.py)."""
    found = []
    for name in os.listdir(folder):
        match = re.fullmatch(r"beat\.(.+)\.(\d+)\.(\d+)\.(\d+)", name)
        if not match:
            continue
        with open(os.path.join(folder, name), encoding="ascii") as file:
            words = file.read().split()
        if len(words) == 3:
            found.append(Beat(match.group(1), *map(int, match.groups()[1:]), *map(int, words)))
    return found


def check_beats(found):
    """No two attempts of a job lived at one instant, and each rank of an attempt was started once."""
    once = {}
    for beat in found:
        other = once.setdefault((beat.job, beat.attempt, beat.rank), beat)
        assert other is beat, f"one rank twice: {other} and {beat}"
    for beat in found:
        for later in found:
            if later.job == beat.job and later.attempt > beat.attempt:
                assert beat.last < later.first, f"two attempts live: {beat} and {later}"

