"""A disk that takes no more: the ranks run on, what is lost is said at once and counted to the byte, and the
files are written again once there is room."""

import os
import re

import pytest

from harness import modes
from harness.waiting import wait_until

pytestmark = pytest.mark.root  # mounts a small disk in a mount namespace
START_S = 20
# Rank 0 writes as many lines of 100 bytes as the file `limit` says, and ends when it says "end".
WRITER = """
import os, signal, sys
done = 0
while True:
    try:
        word = open(os.path.join(sys.argv[1], "limit")).read().strip()
    except FileNotFoundError:
        word = ""
    if word == "end":
        break
    while word and os.environ["RANK"] == "0" and done < int(word):
        done += 1
        os.write(1, f"line {done} ".encode().ljust(99, b".") + b"\\n")
    if word:
        open(os.path.join(sys.argv[1], f"done_{word}.{os.environ['RANK']}"), "w").close()
    signal.sigtimedwait([signal.SIGUSR1], 0.01)
"""
NOTE = re.compile(rb"\n?\[dgxrun: (\d+) bytes are missing here: No space left on device\]\n")


class Job:
    def __init__(self, workspace, *args):
        self.workspace = workspace
        self.program = workspace.write("writer.py", WRITER)
        self.dgxrun = workspace.start(*args, "--name", "full", self.program, workspace.cwd)

    def say(self, word):
        path = self.workspace.path("limit")
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(word))
        os.replace(path + ".new", path)
        if word == "end":
            return
        done = self.workspace.path(f"done_{word}.0")
        wait_until(lambda: os.path.exists(done), START_S, lambda: self.dgxrun.transcript())

    def node(self):
        return self.workspace.status("full")["nodes"][0]


def check_file(path, lines, lost):
    """The file holds all but `lost` of the bytes of so many lines, and says where they are missing."""
    with open(path, "rb") as file:
        data = file.read()
    missing = sum(int(found) for found in NOTE.findall(data))
    kept = NOTE.sub(b"", data)
    assert missing <= lost
    assert len(kept) + lost == 100 * lines
    return missing


def test_full_disk_while_the_job_runs(workspace, box):
    logs = box.small_disk(os.path.join(workspace.state, "local"))
    job = Job(workspace, "-g", 2)
    job.say(10)
    job.dgxrun.wait_line(r"^\[.*:0\] line 10 ", START_S)
    assert job.node()["lost_output_bytes"] == 0
    ballast = box.fill(logs, leave=40_960)
    job.say(2000)  # 200 kB
    said = job.dgxrun.wait_line(
        r"^dgxrun: \S+: more than \S+ \S+ of output could not be written: (\S+/rank_0.out): No space left on "
        r"device; the ranks run on", START_S, stream="stderr",
    )
    path = said.group(1)
    node = job.node()
    assert node["lost_output_bytes"] > 0 and node["lost_output_reason"] == f"{path}: No space left on device"
    assert job.dgxrun.popen.poll() is None
    for command in ("status", "why"):
        assert f"could not be written: {path}: No space left on device" in workspace.run(command, "full").stdout

    os.remove(ballast)
    job.say(2100)
    job.dgxrun.wait_line(r"^\[.*:0\] line 2100 ", START_S)
    job.dgxrun.wait_line(r"^\[.*:0\] \[dgxrun: \d+ bytes are missing here: No space left on device\]$", START_S)
    job.say("end")
    assert job.dgxrun.wait(START_S) == 0, job.dgxrun.transcript()
    status = workspace.status("full")
    assert (status["state"], status["restarts"]) == ("succeeded", 0)
    lost = status["nodes"][0]["lost_output_bytes"]
    assert check_file(box.path(path), 2100, lost) == lost, "the file tells every byte that is missing"
    last = job.dgxrun.stderr.splitlines()[-1]
    assert last.startswith("dgxrun: ") and f"of output could not be written: {path}" in last
    assert job.dgxrun.stderr.count("could not be written") == 2  # when it began, and in the summary
    again = workspace.run("logs", "full")
    assert again.stderr.count("could not be written") == 1 and "line 2100 " in again.stdout


def test_disk_that_stays_full(workspace, box):
    """Nothing in the file can tell; the status does, to the byte. The job's result is its own."""
    box.small_disk(os.path.join(workspace.state, "local"))
    job = Job(workspace, "-g", 1)
    job.say(10_000)  # 1 MB
    job.say("end")
    assert job.dgxrun.wait(START_S) == 0, job.dgxrun.transcript()
    node = job.node()
    path = node["log_dir"] + "/rank_0.out"
    check_file(box.path(path), 10_000, node["lost_output_bytes"])
    logs = workspace.run("logs", "full")
    assert logs.stderr.count("could not be written") == 1 and path in logs.stderr


@pytest.fixture
def dev_in_box(workspace, box):
    mode = modes.DevMode(workspace)
    yield mode
    mode.close()


def test_on_one_node_of_a_cluster(workspace, box, dev_in_box):
    """The agent passes it on, also to clients that come later; the other node's output is whole."""
    logs = box.small_disk(os.path.join(workspace.state, "dev", "node1", "logs"))
    job = Job(workspace, "-n", 2, "-g", 1)
    job.say(3000)
    job.dgxrun.wait_line("^dgxrun: node1: more than .* could not be written", START_S, stream="stderr")
    later = workspace.start("attach", "full")
    later.wait_line("^dgxrun: node1: more than .* could not be written", START_S, stream="stderr")
    nodes = workspace.status("full")["nodes"]
    assert nodes[0]["lost_output_reason"].startswith(logs) and nodes[1]["lost_output_bytes"] == 0
    job.say("end")
    assert job.dgxrun.wait(START_S) == 0, job.dgxrun.transcript()
    assert later.wait(START_S) == 0, later.transcript()
    assert "node1: " in later.stderr.splitlines()[-1] and "could not be written" in later.stderr.splitlines()[-1]
