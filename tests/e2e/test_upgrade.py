"""A cluster is upgraded node by node: agents, clients and a controller of the previous wire version work with
this one; of any other, they are refused at once, and both versions are named."""

import os
import signal

import pytest

from harness.upgrade import EVERYBODY, UpgradeMode
from harness.waiting import wait_until

START_S = 20
REFUSED_S = 5
# Who is one version behind: all of them (as a new controller sees it; to them it is the controller that is
# behind), one node in the middle of an upgrade, or a user's machine.
BEHIND = pytest.mark.parametrize(
    "old", [EVERYBODY, ("node1",), ("client",)], ids=["everybody", "one-node", "client"])


@pytest.fixture
def cluster(request, workspace, leaks):
    made = []

    def make(**options):
        made.append(UpgradeMode(workspace, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@BEHIND
def test_a_job_succeeds(cluster, old):
    mode = cluster(old=old)
    workspace = mode.workspace
    program = workspace.write("hello.py", "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    done = workspace.run(*mode.launch_args(4), "--name", "hello", program)
    for rank in range(4):
        assert f"rank {rank} of 4" in done.stdout, done.transcript()
    status = workspace.status("hello")
    assert (status["state"], status["attempt"], status["exit_code"]) == ("succeeded", 0, 0)
    assert workspace.run("logs", "hello").stdout.count(" of 4") == 4


@BEHIND
def test_a_failed_rank_is_named_and_the_job_resumes(cluster, old):
    mode = cluster(old=old)
    workspace = mode.workspace
    os.mkdir(workspace.path("ckpt"))
    program = workspace.write(
        "resume.py",
        "import os, sys\n"
        "attempt, rank = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK']\n"
        "print('attempt', attempt, 'from', os.environ.get('DGXRUN_RESUME_FROM'))\n"
        "if attempt == '0' and rank == '3':\n"
        "    open('ckpt/step_20.pt', 'w').write('x')\n"
        "    sys.exit('no more')\n",
    )
    done = workspace.run(*mode.launch_args(4), "--name", "resume", "--ckpt-dir", "ckpt", "--grace", "2s", program)
    newest = workspace.path("ckpt/step_20.pt")
    assert done.stdout.count(f"attempt 1 from {newest}") == 4, done.transcript()
    status = workspace.status("resume")
    assert (status["state"], status["restarts"], status["checkpoint"]) == ("succeeded", 1, newest)
    why = workspace.why("resume")
    assert (why["cause"], why["rank"], why["node"]) == ("exit_code", 3, "node2")
    assert "no more" in "\n".join(why["stderr_tail"])


@BEHIND
def test_a_job_is_stopped(cluster, old):
    mode = cluster(old=old)
    workspace = mode.workspace
    program = workspace.write("wait.py", "import signal; print('ready'); signal.pause()")
    job = workspace.start(*mode.launch_args(2), "--name", "wait", program)
    job.wait_line("(?s)ready.*ready", START_S)
    workspace.run("stop", "wait")
    assert job.wait(START_S) == 143, job.transcript()
    assert workspace.status("wait")["state"] == "stopped"


@pytest.mark.parametrize("who", ["node2", "controller"])
def test_what_is_upgraded_under_a_running_job(cluster, who):
    """The order of docs/install.md: the controller is replaced first, then each agent; ranks run on."""
    mode = cluster(old=EVERYBODY)
    workspace = mode.workspace
    program = workspace.write("wait.py", "import signal; print('ready'); signal.pause()")
    job = workspace.start(*mode.launch_args(2), "--name", "wait", program)
    job.wait_line("(?s)ready.*ready", START_S)
    before = {rank: facts["pid"] for rank, facts in workspace.ranks("wait").items()}
    mode.daemon_of[who].popen.terminate()
    mode.daemon_of[who].wait(START_S)
    # The new one is of the new version on both sides.
    if who == "controller":
        mode.start("controller", "dgxrun-controller", os.path.join(workspace.root, "controller.toml"))
    else:
        mode.old = ("node1", "client")
        mode.start_agent(who)
    wait_until(mode.up, START_S, lambda: "\n".join(one.transcript() for one in mode.daemon_of.values()))
    status = workspace.status("wait")
    assert (status["state"], status["attempt"]) == ("running", 0)
    assert {rank: facts["pid"] for rank, facts in workspace.ranks("wait").items()} == before
    os.kill(before[1], signal.SIGUSR1)  # signal.pause ends with the process: the new one must hear of it
    job.wait_line("restart 1 of 3", START_S, stream="stderr")
    job.wait_line("(?s)(ready.*){4}", START_S)
    workspace.run("stop", "wait")
    job.wait(START_S)


@pytest.mark.parametrize("say", ["1.3", "2.0"])
def test_an_agent_too_far_away_is_refused(cluster, say):
    mode = cluster(old=("node1",), say=say, wait=False)
    refused = mode.daemon_of["node1"]
    assert refused.wait(REFUSED_S) == 78, refused.transcript()
    assert say in refused.stderr and "1.1" in refused.stderr, refused.transcript()


@pytest.mark.parametrize("say", ["1.3", "2.0"])
def test_a_client_too_far_away_is_refused(cluster, say):
    mode = cluster(old=("client",), say=say, wait=False)
    done = mode.workspace.run("-n", 1, "--no-python", "/bin/true", expect=78, seconds=REFUSED_S)
    assert f"wire version {say}" in done.stderr and "1.1" in done.stderr, done.transcript()


@pytest.mark.parametrize("say", ["1.3", "2.0"])
def test_every_command_of_a_client_too_far_away_is_refused(cluster, say):
    """Requests that have no field for a version too: the client says it with every call."""
    mode = cluster(old=("client",), say=say, wait=False)
    for command in (["status", "x"], ["status"], ["why", "x"], ["logs", "x"], ["logs", "-f", "x"], ["attach", "x"],
                    ["stop", "x"], ["nodes"]):
        done = mode.workspace.run(*command, expect=78, seconds=REFUSED_S)
        assert f"wire version {say}" in done.stderr and "1.1" in done.stderr, done.transcript()
        assert "upgrade this side" in done.stderr and len(done.stderr.splitlines()) == 1, done.transcript()


def test_a_reader_that_was_cut_off_goes_on_where_it_was(cluster):
    """No byte of the ranks' output passes twice to a client, however often the controller is away; nor does what
    attach reads first, to show the last lines, come again when it follows."""
    mode = cluster(old=("client",), say=None)
    workspace = mode.workspace
    program = workspace.write(
        "talk.py",
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "for part in range(3):\n"
        "    for n in range(4000):\n"
        "        print(f'{part} {n:060}')\n"
        "    print('part', part, 'of', os.environ['RANK'], flush=True)\n"
        "    signal.sigwait([signal.SIGUSR1])\n",
    )
    job = workspace.start(*mode.launch_args(2), "--name", "talk", program)
    for part in range(3):
        for rank in range(2):
            job.wait_line(f"part {part} of {rank}", START_S)
        if part < 2:
            mode.daemon_of["controller"].popen.kill()
            mode.daemon_of["controller"].wait(START_S)
            mode.start_controller()
        wait_until(lambda: running(workspace, "talk"), START_S, "the job is known again")
        if part == 2:
            late = workspace.start("attach", "talk")
            for rank in range(2):
                late.wait_line(f"part 2 of {rank}", START_S)
        for facts in workspace.ranks("talk").values():
            os.kill(facts["pid"], signal.SIGUSR1)
    assert job.wait(START_S) == 0, job.transcript()
    assert late.wait(START_S) == 0, late.transcript()
    folders = [node["log_dir"] for node in workspace.status("talk")["nodes"]]
    written = sum(entry.stat().st_size for folder in folders for entry in os.scandir(folder))
    passed = sum(size for method, way, _, size in mode.messages() if (method, way) == ("Logs", "reply"))
    calls = sum(1 for method, way, _, _ in mode.messages() if (method, way) == ("Logs", "request"))
    assert calls >= 3, "it was cut off twice"
    assert written > 3 * 2 * 4000 * 60
    # Each message has some fields beside the bytes; what is sent a second time would be a third of it all at least.
    assert 2 * written <= passed < 2.1 * written, (written, passed)


def running(workspace, job):
    done = workspace.run("status", job, "--json", expect=None)
    return done.returncode == 0 and '"running"' in done.stdout and '"pid"' in done.stdout
