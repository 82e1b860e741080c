"""Savers killed at random moments: what the judge then calls COMPLETE loads with the real library, and it is
the newest that does. 20 kills a format here, 300 in tests/long."""

import json
import os

import pytest
from conftest import run_tool

# Formats whose saves a crash tears most often, and one of several ranks.
FORMATS = ["torch", "safetensors", "trainer", "lightning", "dcp"]
KILLS = int(os.environ.get("DGXRUN_KILLS", "20"))
SEED = int(os.environ.get("DGXRUN_KILL_SEED", "1"))
# Each kill: a start of the ranks, some saves, one or two loads; under load some seconds.
KILL_LIMIT_S = 10
START_LIMIT_S = 120


@pytest.mark.parametrize("name", os.environ.get("DGXRUN_KILL_FORMATS", ",".join(FORMATS)).split(","))
def test_the_newest_that_loads_is_found(name, tmp_path):
    limit_s = START_LIMIT_S + KILLS * KILL_LIMIT_S
    lines = run_tool("killer.py", name, KILLS, SEED, tmp_path, limit_s=limit_s).splitlines()
    results = [json.loads(line) for line in lines]
    torn, found = (sum(one[what] for one in results) for what in ("torn", "chosen"))
    print(f"{name}: {len(results)} kills, {torn} cut a save, {found} left a complete checkpoint, which loaded")
    problems = [one for one in results if one["problem"]]
    assert not problems, "\n".join(f"{one['problem']} in {one['folder']}: {one['verdicts']}" for one in problems)
    # The kills were worth something: there was a checkpoint to find nearly every time.
    assert len(results) == KILLS
    assert found > KILLS / 2, results
