"""The console and `logs` have the output of every attempt, in order, and have it at once."""

import os
import re
import statistics
import subprocess
import time
from collections import Counter

import pytest

from harness.process import die_with_parent

LOCAL_AND_DEV = pytest.mark.parametrize("mode", ["local", "dev"], indirect=True)
RESTARTS = 4
LINES = 20
# Ends within milliseconds: sh, a few lines to both streams, exit. Rank 0 fails once rank 1 has said all.
SHORT = """
k=$TORCHELASTIC_RESTART_COUNT n=0
while [ $n -lt {lines} ]; do
    echo out $n of $RANK in $k
    echo err $n of $RANK in $k >&2
    n=$((n+1))
done
printf 'bye of %s in %s' $RANK $k
if [ $RANK = 0 ]; then read _ < meet_$k; exit 7; else echo > meet_$k; fi
"""
DELAY_LINES = 40
DELAY_LIMIT_S = 0.03  # the median; a few ms on an idle machine, and no poll of tens of ms in between
LAST_LINES = 20_000


def make_meeting_points(workspace, attempts):
    for attempt in attempts:
        os.mkfifo(workspace.path(f"meet_{attempt}"))


def expected(attempts, ranks, word):
    lines = [f"{word} {n} of {rank} in {k}" for k in attempts for rank in ranks for n in range(LINES)]
    if word == "out":
        lines += [f"bye of {rank} in {k}" for k in attempts for rank in ranks]
    return Counter(lines)


def said(text):
    """What the ranks said, in order, without the prefixes and without lines of dgxrun itself."""
    lines = [line for line in text.splitlines() if not line.startswith("dgxrun: ")]
    matches = [re.fullmatch(r"\[[^:\]]+:\d+\] (.*)", line) for line in lines]
    assert all(matches), lines
    return [match.group(1) for match in matches]


def check_all(text, attempts, ranks, word):
    lines = said(text)
    assert Counter(lines) == expected(attempts, ranks, word)
    order = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert order == sorted(order), "output of an attempt after that of a later one"


@LOCAL_AND_DEV
def test_every_line_of_five_short_attempts_once_and_in_order(mode):
    workspace = mode.workspace
    attempts = range(RESTARTS + 1)
    make_meeting_points(workspace, attempts)
    script = SHORT.format(lines=LINES)
    done = workspace.run(
        *mode.launch_args(2), "--no-python", "--name", "short", "--max-restarts", RESTARTS, "sh", "-c", script, expect=7
    )
    check_all(done.stdout, attempts, (0, 1), "out")
    check_all(done.stderr, attempts, (0, 1), "err")

    for attempt in attempts:
        one = workspace.run("logs", "short", "--attempt", attempt)
        check_all(one.stdout, [attempt], (0, 1), "out")
        check_all(one.stderr, [attempt], (0, 1), "err")
    last = workspace.run("logs", "short", "-r", 1)
    check_all(last.stdout, [RESTARTS], [1], "out")
    onwards = workspace.run("logs", "short", "--follow", "--attempt", 2)
    check_all(onwards.stdout, range(2, RESTARTS + 1), (0, 1), "out")
    none = workspace.run("logs", "short", "--attempt", RESTARTS + 1, expect=None)
    assert none.returncode != 0
    assert f"attempt {RESTARTS + 1}" in none.stderr


@LOCAL_AND_DEV
def test_much_output_right_before_the_end_is_not_cut(mode):
    workspace = mode.workspace
    make_meeting_points(workspace, [0])
    script = (
        f"seq 1 {LAST_LINES}; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit; "
        "if [ $RANK = 0 ]; then read _ < meet_0; exit 7; else echo > meet_0; fi"
    )
    done = workspace.run(*mode.launch_args(2), "--no-python", "--name", "much", "sh", "-c", script)
    assert Counter(said(done.stdout)) == {str(n): 4 for n in range(1, LAST_LINES + 1)}


@LOCAL_AND_DEV
def test_a_line_is_on_the_console_within_milliseconds(mode):
    workspace = mode.workspace
    program = workspace.write(
        "stamp.py",
        "import signal, time\n"
        f"for _ in range({DELAY_LINES}):\n"
        "    print(time.time_ns(), flush=True)\n"
        "    signal.sigtimedwait([signal.SIGUSR1], 0.02)\n",
    )
    with subprocess.Popen(
        workspace.dgxrun_argv([*mode.launch_args(2), "--name", "stamp", program]), env=workspace.env,
        cwd=workspace.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent, bufsize=0,
    ) as job:
        delays = []
        buffer = b""
        while piece := os.read(job.stdout.fileno(), 65536):
            now = time.time_ns()
            *lines, buffer = (buffer + piece).split(b"\n")
            delays += [(now - int(line.split()[-1])) / 1e9 for line in lines]
    assert job.returncode == 0
    assert len(delays) == 2 * DELAY_LINES
    print(f"{mode.name}: median {statistics.median(delays) * 1e3:.1f} ms, least {min(delays) * 1e3:.1f} ms")
    assert statistics.median(delays) < DELAY_LIMIT_S, sorted(delays)
