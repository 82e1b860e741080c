"""The benchmark runs and has all its rows. It says nothing about times: those need a quiet machine."""

import json
import os
import subprocess
import sys

from harness.workspace import REPOSITORY, binaries

RUN = os.path.join(REPOSITORY, "tests", "bench", "run.py")
BENCH_S = 240  # dgxrun's rows take seconds, the one of torchrun imports torch twice


def test_bench_has_all_rows(session_dir):
    _, folder, _ = session_dir
    out = os.path.join(folder, "bench.json")
    env = {**os.environ, "TMPDIR": folder}
    done = subprocess.run(
        [sys.executable, RUN, "--smoke", "--bin", binaries(), "--json", out], env=env, timeout=BENCH_S,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out, encoding="utf-8") as file:
        result = json.load(file)
    rows = {(row["name"], row["what"]): row for row in result["rows"]}
    for ranks in ("local, 1 rank", "local, 2 ranks", "local, 8 ranks", "2 nodes, 2 ranks", "2 nodes, 8 ranks"):
        for program in ("/bin/true", "python -c pass"):
            for what in ("first", "exit"):
                assert rows[f"{program}, {ranks}", what]["dgxrun"]["median"] > 0
    assert rows["death, local, 2 ranks", "death"]["dgxrun"]["median"] > 0
    assert rows["death, 2 nodes, 2 ranks", "death"]["dgxrun"]["median"] > 0
    assert rows["dgxrun status", "exit"]["dgxrun"]["median"] > 0
    assert rows["/bin/true, local, 1 rank", "exit"]["ratio"] > 0  # torchrun ran too
    local, cluster = result["memory"].values()
    assert {"dgxrun", "dgxrun (janitor)", "dgxrun-guard", "dgxrun-shim", "dgxrun-writer"} <= set(local)
    assert {"dgxrun", "dgxrun-agent", "dgxrun-controller", "dgxrun-shim"} <= set(cluster)
    for name, (pss, peak) in {**local, **cluster}.items():
        assert 0 < pss and 0 < peak, name
    for word in ("cores", "kernel", "load"):
        assert word in result["machine"]
    assert "ratio" in done.stdout
