"""Every byte that the ranks write arrives, in whole lines, with the right prefix."""

import os
import re
from collections import defaultdict

import pytest

from harness.waiting import wait_until

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
LINES = 2000
# Each line is written in three pieces, so that pieces of several ranks meet in every buffer.
CHATTER = """
import os
rank = os.environ["RANK"]
for number in range({lines}):
    for piece in (f"line {{number}} ", "of rank ", f"{{rank}} end\\n"):
        os.write(1, piece.encode())
    if number % 100 == 0:
        os.write(2, f"error {{number}} of rank {{rank}}\\n".encode())
os.write(1, b"last word without a newline")
"""


def by_rank(text):
    lines = defaultdict(list)
    for line in text.splitlines():
        found = re.fullmatch(r"\[([^:\]]+):(\d+)\] (.*)", line)
        assert found, f"a line without its prefix: {line!r}"
        lines[int(found.group(2))].append((found.group(1), found.group(3)))
    return lines


def check_complete(text, ranks, node_of):
    lines = by_rank(text)
    assert set(lines) == set(ranks)
    for rank in ranks:
        assert {node for node, _ in lines[rank]} == {node_of(rank)}
        expected = [f"line {number} of rank {rank} end" for number in range(LINES)] + ["last word without a newline"]
        assert [line for _, line in lines[rank]] == expected


@ALL_MODES
def test_no_line_is_lost_or_broken(mode):
    workspace = mode.workspace
    program = workspace.write("chatter.py", CHATTER.format(lines=LINES))
    done = workspace.run(*mode.launch_args(8), "--name", "chatter", program, seconds=120)
    nodes = mode.node_names

    def node_of(rank):
        return nodes[rank * len(nodes) // 8]

    check_complete(done.stdout, range(8), node_of)
    for rank in range(8):
        for number in range(0, LINES, 100):
            assert f"[{node_of(rank)}:{rank}] error {number} of rank {rank}\n" in done.stderr

    again = workspace.run("logs", "chatter")
    check_complete(again.stdout, range(8), node_of)
    some = workspace.run("logs", "chatter", "-r", "3,5-6")
    check_complete(some.stdout, (3, 5, 6), node_of)

    status = workspace.status("chatter")
    if mode.name != "net":  # there the folder is as good as here, but says so only for that node
        for node in status["nodes"]:
            assert os.path.isdir(node["log_dir"])


def test_above_sixteen_ranks_only_rank_zero_speaks(dev):
    workspace = dev.workspace
    program = workspace.write("hello.py", "import os; print('hello from', os.environ['RANK'])\n")
    done = workspace.run("-n", 2, "-g", 9, program, seconds=120)
    assert set(by_rank(done.stdout)) == {0}
    done = workspace.run("-n", 2, "-g", 9, "--log-all", program, seconds=120)
    assert set(by_rank(done.stdout)) == set(range(18))


def test_progress_bars_and_long_lines(local):
    workspace = local.workspace
    program = workspace.write(
        "bars.py",
        "import os\n"
        "if os.environ['RANK'] == '0':\n"
        "    for number in range(5): os.write(1, f'{number}0 %\\r'.encode())\n"
        "    os.write(1, b'done\\n' + b'x' * 200_000 + b'\\n')\n",
    )
    done = workspace.run("-g", 2, program)
    lines = [line for _, line in by_rank(done.stdout)[0]]
    assert lines[:6] == ["00 %", "10 %", "20 %", "30 %", "40 %", "done"]
    assert all(len(line) <= 65536 for line in lines)
    assert "".join(lines[6:]) == "x" * 200_000


def test_logs_follow_over_attempts(dev):
    workspace = dev.workspace
    program = workspace.write(
        "twice.py",
        "import os, signal, sys\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('attempt', attempt, 'rank', os.environ['RANK'])\n"
        "go = os.path.join(sys.argv[1], f'go_{attempt}')\n"
        "while not os.path.exists(go): signal.sigtimedwait([signal.SIGUSR1], 0.01)\n"
        "sys.exit(1 - attempt)\n",
    )
    job = workspace.start("-n", 2, "-g", 1, "--name", "twice", program, workspace.cwd)
    job.wait_line("attempt 0 rank 1", 20)
    follower = workspace.start("logs", "-f", "twice")
    follower.wait_line(r"^\[node1:0\] attempt 0 rank 0$", 20)
    follower.wait_line(r"^\[node2:1\] attempt 0 rank 1$", 20)
    workspace.write("go_0", "")
    follower.wait_line(r"^\[node1:0\] attempt 1 rank 0$", 20)
    follower.wait_line(r"^\[node2:1\] attempt 1 rank 1$", 20)
    workspace.write("go_1", "")
    assert job.wait(20) == 0, job.transcript()
    assert follower.wait(20) == 0, follower.transcript()
    old = workspace.run("logs", "twice", "--attempt", 0)
    assert sorted(old.stdout.splitlines()) == ["[node1:0] attempt 0 rank 0", "[node2:1] attempt 0 rank 1"]
    new = workspace.run("logs", "twice")
    assert sorted(new.stdout.splitlines()) == ["[node1:0] attempt 1 rank 0", "[node2:1] attempt 1 rank 1"]


def test_output_shows_while_the_job_runs(local):
    workspace = local.workspace
    program = workspace.write("wait.py", "import signal; print('first'); signal.pause()\n")
    job = workspace.start("-g", 2, "--name", "live", "--grace", "1s", program)
    job.wait_line("(?s)first.*first", 20)
    done = workspace.run("logs", "live")
    assert done.stdout.count("first") == 2
    workspace.run("stop", "live")
    wait_until(lambda: job.popen.poll() is not None, 10, job.transcript)
    assert job.popen.returncode == 143
