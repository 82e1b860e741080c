"""The judge of checkpoints, as a program (tests/tools/ckpt_judge.cc): one call for many folders."""

import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("DGXRUN_BIN", os.path.join(ROOT, "build", "debug", "bin"))
# Paths in one call: a command line holds 2 MiB.
PATHS_A_CALL = 2000
# A judge that takes longer than this hangs: it reads a few thousand small files.
LIMIT_S = 120


def judge(paths, *options):
    """(checkpoints, reads): the findings about the given paths, in the order in which the judge says them,
    and what it had to read for them."""
    found, reads = [], {}
    for start in range(0, len(paths), PATHS_A_CALL):
        done = subprocess.run(
            [os.path.join(BIN, "ckpt_judge"), *options, *paths[start : start + PATHS_A_CALL]],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        answer = json.loads(done.stdout) if done.stdout else {"errors": [done.stderr], "checkpoints": []}
        if done.returncode != 0 or answer["errors"]:
            raise RuntimeError(f"ckpt_judge exits {done.returncode}: {answer['errors']}")
        found += answer["checkpoints"]
        for name, count in answer["reads"].items():
            reads[name] = reads.get(name, 0) + count
    return found, reads


def listing(folders, *options):
    """folder -> its checkpoints, newest first."""
    folders = [os.path.abspath(folder) for folder in folders]
    result = {folder: [] for folder in folders}
    for one in judge(folders, "--list", *options)[0]:
        path = one["path"]
        while path not in result:
            path = os.path.dirname(path)
        result[path].append(one)
    return result
