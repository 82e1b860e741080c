"""SIGKILL at random moments of a process that saves in a loop, and what is said of what is left.

After each kill the judge lists the folder, and the real library has the last word: what the judge calls
COMPLETE must load, and nothing that the judge puts before it may load (it would be newer, and work lost).
"""

import os
import random
import shutil
import time

from fw_kit import loading, ranks
from fw_kit.judge import listing

# A process that has not begun its first save after this long is not going to.
FIRST_SAVE_S = 60
# Checkpoints that stay while it saves: pruning is a part of what a kill can hit.
KEEP = 3
# How much later than the begin of the second save a kill comes, in saves.
SAVES = 4
FOREVER = 10**9


def _saves_in(folder):
    """Names of checkpoints in a folder, finished or not."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def _wait_for_saves(folder, count, gang):
    """Seconds until the folder's `count`-th name is there (polled every millisecond, with a deadline)."""
    begin = time.monotonic()
    while len(_saves_in(folder)) < count:
        if time.monotonic() - begin > FIRST_SAVE_S:
            with open(gang.log, errors="replace") as file:
                raise RuntimeError(f"{gang.kill()}: no save after {FIRST_SAVE_S} s: {file.read()[-3000:]}")
        time.sleep(0.001)
    return time.monotonic() - begin


class Killer:
    """Kills one format's savers. `writer` has imported its framework; nothing of it has run yet."""

    def __init__(self, writer, work, seed):
        self.writer = writer
        self.work = work
        self.random = random.Random(seed)
        # Of one save, once it is known.
        self.save_s = 0.05

    def once(self, number):
        """One saver, one kill, one verdict. Gives a dict; its "problem" is empty where all is well."""
        root = os.path.join(self.work, f"{number:04d}")
        folder = os.path.join(root, "saves")
        os.makedirs(folder)
        checkpoints = os.path.join(folder, self.writer.subfolder)
        gang = ranks.Gang(
            self.writer.world, self.writer.train, folder, 1, FOREVER, KEEP, log=os.path.join(root, "log")
        )
        _wait_for_saves(checkpoints, 1, gang)
        if not self.writer.overwrites:
            self.save_s = 0.7 * self.save_s + 0.3 * _wait_for_saves(checkpoints, 2, gang)
        delay = self.random.uniform(0, SAVES * self.save_s)
        # The moment of the kill is what this test is about.
        time.sleep(delay)
        gang.kill()
        result = {"number": number, "folder": checkpoints, "delay_s": round(delay, 4), **self.judged(checkpoints)}
        if not result["problem"]:
            shutil.rmtree(root)
        return result

    def judged(self, folder):
        found = listing([folder])[os.path.abspath(folder)]
        verdicts = [(os.path.basename(one["path"]), one["verdict"], one["reason"]) for one in found]
        newer, chosen = [], None
        for one in found:
            if one["verdict"] == "COMPLETE":
                chosen = one
                break
            newer.append(one)
        problem = ""
        if chosen is not None:
            loaded = loading.in_child(self.writer, chosen["path"])
            if "error" in loaded:
                problem = f"COMPLETE, but does not load: {loaded}"
        for one in newer if not self.writer.overwrites and not problem else []:
            loaded = loading.in_child(self.writer, one["path"])
            if "step" in loaded and not self.writer.may_pass_over(one):
                problem = f"{one['verdict']} ({one['file']}: {one['reason']}), but loads: {loaded}"
        return {"verdicts": verdicts, "problem": problem, "chosen": chosen is not None, "torn": bool(newer)}
