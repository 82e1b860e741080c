"""What a launch does with its command line, and what the ranks are given."""

import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from harness.process import Running, die_with_parent
from harness.waiting import wait_until
from harness.workspace import RANKS, check_output

FACTS = os.path.join(RANKS, "facts.py")
ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
TORCHRUN_VARIABLES = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_SIGNALS_TO_HANDLE", "OMP_NUM_THREADS",
}


def facts(workspace, rank, attempt=0):
    with open(workspace.path(f"facts_{rank}.{attempt}.json"), encoding="utf-8") as file:
        return json.load(file)


def nvidia_on_pci_bus():
    vendors = glob.glob("/sys/bus/pci/devices/*/vendor")
    for path in vendors:
        with open(path, encoding="ascii") as file, open(path.replace("vendor", "class"), encoding="ascii") as kind:
            if file.read().strip() == "0x10de" and kind.read().startswith("0x03"):
                return True
    return False


@ALL_MODES
def test_environment_of_the_ranks(mode):
    workspace, nodes = mode.workspace, len(mode.node_names)
    done = workspace.run(
        *mode.launch_args(4), "--device", "cpu", "--name", "env", FACTS, workspace.cwd, "fail",
        env={"GREETING": "hello", "RANK": "17", "MASTER_PORT": "1", "SSH_CONNECTION": "x", "SLURM_JOB_ID": "1",
             "XDG_RUNTIME_DIR": "/x", "DISPLAY": ":1", "HOSTNAME": "wrong"},
    )
    shape = f"1 node × 4 = 4 ranks on this machine" if nodes == 1 else f"2 nodes × 2 = 4 ranks on {mode.name}"
    assert shape in done.stderr.splitlines()[0]

    ports = []
    for attempt in (0, 1):
        given = [facts(workspace, rank, attempt) for rank in range(4)]
        envs = [one["env"] for one in given]
        for rank, env in enumerate(envs):
            local_ranks = 4 // nodes
            assert TORCHRUN_VARIABLES <= set(env)
            expected = {
                "RANK": rank, "LOCAL_RANK": rank % local_ranks, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": local_ranks,
                "GROUP_RANK": rank // local_ranks, "GROUP_WORLD_SIZE": nodes, "ROLE_NAME": "default",
                "ROLE_RANK": rank, "ROLE_WORLD_SIZE": 4, "TORCHELASTIC_RESTART_COUNT": attempt,
                "TORCHELASTIC_MAX_RESTARTS": 3, "TORCHELASTIC_USE_AGENT_STORE": "False",
                "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, "DGXRUN_ATTEMPT": attempt,
                "DGXRUN_NODE": mode.node_names[rank // local_ranks], "GREETING": "hello",
                "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // local_ranks),
            }
            assert {name: env[name] for name in expected} == {name: str(value) for name, value in expected.items()}
            assert env["TORCHELASTIC_RUN_ID"] == env["DGXRUN_JOB_ID"] == workspace.status("env")["job"]
            assert not {"SSH_CONNECTION", "SLURM_JOB_ID", "XDG_RUNTIME_DIR", "DISPLAY"} & set(env)
            assert env.get("HOSTNAME") != "wrong"
            assert "DGXRUN_RESUME_FROM" not in env
            assert env["PATH"] == workspace.env["PATH"]
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}) == 1
        ports.append(envs[0]["MASTER_PORT"])
        if mode.name == "net":
            assert envs[0]["MASTER_ADDR"] in (mode.network.addresses["node1"], "node1")
        for one in given:
            assert one["unbuffered"] and one["session_leader"]
            assert one["cwd"] == workspace.cwd
            assert one["stdin"] == "/dev/null"
            assert one["fds"][:3] == [0, 1, 2] and len(one["fds"]) == 4  # and the listing of the folder itself
    assert ports[0] != ports[1]
    status = workspace.status("env")
    assert (status["state"], status["restarts"]) == ("succeeded", 1)


def test_without_a_gpu_one_line_says_so(local):
    done = local.workspace.run("--no-python", "true")
    said = done.stderr.count("no NVIDIA device on the PCI bus")
    assert said == (0 if nvidia_on_pci_bus() else 1)


def test_what_follows_the_script_is_the_scripts(local):
    workspace = local.workspace
    workspace.run(FACTS, workspace.cwd, "--help", "-n", "7", "--name", "", "a b", "--")
    assert facts(workspace, 0)["argv"][2:] == ["--help", "-n", "7", "--name", "", "a b", "--"]


def test_run_always_launches(local):
    workspace = local.workspace
    workspace.write("status", "#!/bin/sh\necho launched \"$@\"\n", mode=0o755)
    done = workspace.run("run", "./status", "--json")
    assert "launched --json" in done.stdout


def test_module(local):
    workspace = local.workspace
    os.mkdir(workspace.path("package"))
    workspace.write("package/__init__.py", "")
    workspace.write("package/tool.py", "import sys; print('module', *sys.argv[1:])\n")
    done = workspace.run("-m", "package.tool", "-x", "1")
    assert "module -x 1" in done.stdout


def test_interpreter_of_the_active_environment(local):
    workspace = local.workspace
    os.makedirs(workspace.path("venv/bin"))
    os.symlink(sys.executable, workspace.path("venv/bin/python"))
    env = {"VIRTUAL_ENV": workspace.path("venv"), "PYTHON_EXEC": ""}
    program = workspace.write("which.py", "import os; print(os.readlink('/proc/self/exe'), open('/proc/self/cmdline').read())\n")
    done = workspace.run(program, env=env)
    assert workspace.path("venv/bin/python") + "\0-u\0" in done.stdout


@pytest.mark.parametrize(
    ("rule", "there", "missing"),
    [
        ("ALL", {"FRUIT": "pear", "COLOUR": "red"}, set()),
        ("NONE", {}, {"FRUIT", "COLOUR"}),
        ("FRUIT,SIZE=a=b", {"FRUIT": "pear", "SIZE": "a=b"}, {"COLOUR"}),
        ("ALL,SIZE=7", {"FRUIT": "pear", "COLOUR": "red", "SIZE": "7"}, set()),
    ],
)
def test_export(local, rule, there, missing):
    workspace = local.workspace
    workspace.run("--export", rule, FACTS, workspace.cwd, env={"FRUIT": "pear", "COLOUR": "red"})
    env = facts(workspace, 0)["env"]
    assert {name: env.get(name) for name in there} == there
    assert not missing & set(env)
    assert {"PATH", "HOME"} <= set(env)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--grase", "3s", "x.py"], 64, ["--grase", "--grace"]),
        (["-n", "0", "x.py"], 64, ["-n"]),
        (["-g", "0", "x.py"], 64, ["-g"]),
        (["-g", "none", "x.py"], 64, ["-g"]),
        ([], 64, ["script"]),
        (["--max-restarts", "-1", "x.py"], 64, ["--max-restarts"]),
        (["--name", "a/b", "x.py"], 64, ["--name"]),
        (["nowhere.py"], 78, ["nowhere.py"]),
        (["--no-python", "no-such-program"], 78, ["no-such-program"]),
        (["-n", "2", "x.py"], 78, ["dgxrun dev up -n 2", "cluster"]),
        (["--cluster", "/nonexistent.toml", "x.py"], 78, ["/nonexistent.toml"]),
        (["status", "no-such-job"], 64, ["no-such-job"]),
        (["stop", "no-such-job"], 64, ["no-such-job"]),
        (["why", "no-such-job"], 64, ["no-such-job"]),
        (["logs", "no-such-job"], 64, ["no-such-job"]),
        (["status", "--jsn"], 64, ["--jsn", "--json"]),
    ],
)
def test_errors_name_the_thing_and_the_way_on(local, args, code, words):
    workspace = local.workspace
    workspace.write("x.py", "print('ran')\n")
    done = workspace.run(*args, expect=code)
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert len(done.stderr.splitlines()) <= 3


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("DGXRUN_RUN_DIR", "/proc/none"),
        ("DGXRUN_RUN_DIR", "/etc/passwd"),
        ("DGXRUN_RUN_DIR", "/proc/" + "x" * 110),
        ("DGXRUN_RUN_DIR", "relative"),
        ("DGXRUN_STATE_DIR", "/proc/none"),
        ("DGXRUN_STATE_DIR", "/etc/passwd"),
        ("DGXRUN_STATE_DIR", "relative"),
    ],
)
def test_unusable_folders_are_configuration(local, name, folder):
    local.workspace.env[name] = folder
    assert folder in local.workspace.run("--no-python", "true", expect=78).stderr


def test_more_nodes_than_the_cluster_has(dev):
    workspace = dev.workspace
    workspace.write("x.py", "print('ran')\n")
    done = workspace.run("-n", 3, "x.py", expect=None, seconds=20)
    assert done.returncode in (64, 78)
    assert "3" in done.stderr and "2" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(0, 0), (1, 1), (85, 85), (255, 255)])
def test_exit_code_is_the_ranks(local, number, code):
    local.workspace.run("--max-restarts", 0, "--no-python", "sh", "-c", f"exit {number}", expect=code)


@pytest.mark.root
@pytest.mark.parametrize("missing", ["script", "folder"])
def test_missing_on_one_node_names_node_and_path(net, missing):
    """node2 has another file system over the working folder, or over its parent."""
    workspace = net.workspace
    os.makedirs(workspace.path("project/run"))
    workspace.write("project/run/train.py", "print('ran')\n")
    cwd = workspace.path("project/run")
    hidden = cwd if missing == "script" else os.path.dirname(cwd)
    check_output(net.host_argv("node2", "mount", "-t", "tmpfs", "none", hidden))
    done = workspace.run("-n", 2, "--name", "gone", "train.py", cwd=cwd, expect=78)
    assert "ran" not in done.stdout
    wanted = os.path.join(cwd, "train.py") if missing == "script" else cwd
    assert "node2" in done.stderr and wanted in done.stderr
    status = workspace.status("gone")
    assert (status["state"], status["restarts"], status["why"]["cause"]) == ("failed", 0, "launch_refused")
    assert status["why"]["node"] == "node2"


class Terminal:
    """dgxrun with a terminal of its own, like a person's."""

    def __init__(self, workspace, *args):
        self.master, slave = pty.openpty()

        def take_terminal():
            die_with_parent()
            os.setsid()
            os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a leader opens is its own

        self.popen = subprocess.Popen(
            workspace.dgxrun_argv(args), env=workspace.env, cwd=workspace.cwd,
            stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.text = ""

    def wait_text(self, pattern, seconds=20):
        def look():
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except (BlockingIOError, OSError):
                pass
            return re.search(pattern, self.text)

        return wait_until(look, seconds, lambda: f"{pattern!r} in {self.text!r}")

    def close(self):
        self.popen.kill()
        self.popen.wait()
        os.close(self.master)


@pytest.fixture
def terminal(workspace):
    opened = []

    def start(*args):
        opened.append(Terminal(workspace, *args))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_ctrl_c_on_a_terminal_stops_all_ranks(local, terminal):
    program = local.workspace.write("wait.py", "import signal; print('ready'); signal.pause()\n")
    dgxrun = terminal("-g", 2, "--name", "typed", program)
    dgxrun.wait_text("(?s)ready.*ready")
    os.write(dgxrun.master, b"\x03")
    assert dgxrun.popen.wait(timeout=20) == 130
    assert local.workspace.status("typed")["state"] == "stopped"


def test_single_local_rank_has_the_terminal(local, terminal):
    program = local.workspace.write(
        "ask.py",
        "import sys\n"
        "print('tty', sys.stdin.isatty(), sys.stdout.isatty())\n"
        "print('name? ', end='', flush=True)\n"
        "print('got', sys.stdin.readline())\n",
    )
    dgxrun = terminal(program)
    dgxrun.wait_text("tty True True")
    dgxrun.wait_text(r"name\? ")
    os.write(dgxrun.master, b"ada\n")
    dgxrun.wait_text("got ada")
    assert dgxrun.popen.wait(timeout=20) == 0


def test_second_ctrl_c_does_not_wait_for_the_grace(local):
    workspace = local.workspace
    program = workspace.write(
        "deaf.py", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready')\nwhile True: signal.pause()\n"
    )
    dgxrun: Running = workspace.start("-g", 2, "--grace", "1000s", program)
    dgxrun.wait_line("(?s)ready.*ready", 20)
    dgxrun.signal(signal.SIGINT)
    dgxrun.wait_line("Ctrl-C|stopping", 5, stream="stderr")
    dgxrun.signal(signal.SIGINT)
    assert dgxrun.wait(10) == 130
