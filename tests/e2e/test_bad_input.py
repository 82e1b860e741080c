"""Whatever is wrong: one clear line that names the thing and how to mend it, the documented exit code, at once;
nothing is left running (the `leaks` fixture), nothing that was accepted is lost.

A wrong wire version is in test_upgrade.py, output that cannot be written in test_lost_output.py.
"""

import os
import pwd
import re
import signal
import socket

import pytest

from harness import modes
from harness.process import Running, children, process
from harness.waiting import wait_until
from test_survival import mode_up

AT_ONCE_S = 5  # as documented; also for what nobody answers
START_S = 20
NOBODY = pwd.getpwnam("nobody")
RAN = "ran"
CLUSTER = '[cluster]\nname = "c"\ncontroller = "unix:/nonexistent/c.sock"\n'


def check_line(done, code, *words, program="dgxrun"):
    """One line on stderr, with these words; nothing on stdout."""
    assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.transcript()}"
    # A daemon's stderr is its log: what it is and where comes first.
    lines = [line for line in done.stderr.splitlines() if "[info]" not in line and "[warning]" not in line]
    assert len(lines) == 1 and program in lines[0], done.transcript()
    for word in words:
        assert word in lines[0], f"{word!r} is missing\n{done.transcript()}"
    assert done.stdout == "", done.transcript()


# name, command line, exit code, words of the line. In the folder: x.py, data (a folder), noexec, bad.toml, ...
LINES = [
    ("missing script", "nowhere.py", 78, ["script", "nowhere.py", "does not exist"]),
    ("script is a folder", "data.py", 78, ["data.py", "is not a file"]),
    ("script without x", "./noexec", 78, ["noexec", "chmod +x"]),
    ("program that is in PATH", "sh", 78, ["no script sh", "dgxrun --no-python sh"]),
    ("no such program", "--no-python no-such-program", 78, ["no-such-program", "PATH"]),
    ("program is no program", "--no-python ./noexec", 78, ["noexec", "is not executable"]),
    ("no script", "-g 2", 64, ["no script given", "dgxrun --help"]),
    ("nothing", "", 64, ["no script given", "dgxrun --help"]),
    ("no module", "-m", 64, ["-m needs"]),
    ("module and program", "-m --no-python x", 64, ["-m", "--no-python", "exclude"]),
    ("-n 0", "-n 0 x.py", 64, ["-n 0", "from 1"]),
    ("-n word", "-n two x.py", 64, ["-n two", "not a number"]),
    ("-n too many", "-n 4000000000 x.py", 64, ["-n 4000000000"]),
    ("-n empty", "-n= x.py", 64, ["-n"]),
    ("-g 0", "-g 0 x.py", 64, ["-g 0", "from 1", '"all"']),
    ("-g negative", "-g -1 x.py", 64, ["-g -1"]),
    ("-g fraction", "-g 1.5 x.py", 64, ["-g 1.5"]),
    ("-g too many", "-g 5000 x.py", 64, ["-g 5000"]),
    ("-g all on the CPU", "-g all --device cpu x.py", 78, ["-g all", "give a number"]),
    ("unknown option", "--grase 3s x.py", 64, ["unknown option --grase", "did you mean --grace?"]),
    ("unknown option, far from all", "--frobnicate x.py", 64, ["--frobnicate", "dgxrun --help"]),
    ("unknown letter", "-q x.py", 64, ["unknown option -q"]),
    ("option without its value", "--grace", 64, ["--grace needs a value"]),
    ("flag with a value", "--log-all=yes x.py", 64, ["--log-all takes no value"]),
    ("--device", "--device tpu x.py", 64, ["--device tpu", "auto, gpu or cpu"]),
    ("--grace word", "--grace soon x.py", 64, ["--grace", "soon", "30s"]),
    ("--grace negative", "--grace -3s x.py", 64, ["--grace", "-3s"]),
    ("--grace long", "--grace 25h x.py", 64, ["--grace", "25h", "24h"]),
    ("--max-restarts", "--max-restarts -1 x.py", 64, ["--max-restarts -1"]),
    ("--name", "--name a/b x.py", 64, ["--name a/b", "letters"]),
    ("--name long", "--name " + 65 * "n" + " x.py", 64, ["--name", "64"]),
    ("--resume-arg alone", "--resume-arg={} x.py", 64, ["--resume-arg", "--ckpt-dir"]),
    ("--resume-arg open quote", "--ckpt-dir c --resume-arg=' x.py", 64, ["--resume-arg", "not closed"]),
    ("--ckpt-dir empty", "--ckpt-dir= x.py", 64, ["--ckpt-dir needs a value"]),
    ("--export", "--export 1A=2 x.py", 64, ["--export", "1A", "variable name"]),
    ("--detach here", "--detach x.py", 64, ["--detach", "cluster"]),
    ("no cluster", "-n 2 x.py", 78, ["no cluster", "dgxrun dev up -n 2", "--cluster"]),
    ("cluster file missing", "--cluster ./none.toml x.py", 78, ["./none.toml", "does not exist"]),
    ("cluster name unknown", "--cluster none x.py", 78, ["no cluster none", "none.toml"]),
    ("dev cluster is down", "--cluster dev x.py", 78, ["dgxrun dev up"]),
    ("cluster file is a folder", "--cluster ./data.py x.py", 78, ["data.py", "is not a file"]),
    ("cluster file with a typo", "--cluster ./typo.toml -n 1 x.py", 78, ["typo.toml:3:1", '"controler"', '"controller"']),
    ("the same for status", "status --cluster ./typo.toml", 78, ["typo.toml:3:1", '"controller"']),
    ("cluster file without TLS", "--cluster ./plain.toml -n 1 x.py", 78, ["plain.toml:3:14", "[tls]", "cluster init"]),
    ("certificate missing", "--cluster ./tls.toml -n 1 x.py", 78, ["none.crt", "No such file"]),
    ("controller is not there", "--cluster ./down.toml -n 1 x.py", 69, ["cluster c", "/nonexistent/c.sock"]),
    ("status of it", "status --cluster ./down.toml", 69, ["cluster c", "/nonexistent/c.sock"]),
    ("status of no job", "status no-such-job", 64, ["no job no-such-job"]),
    ("why of no job", "why no-such-job", 64, ["no job no-such-job"]),
    ("logs of no job", "logs no-such-job", 64, ["no job no-such-job"]),
    ("attach to no job", "attach no-such-job", 64, ["no job no-such-job"]),
    ("stop of no job", "stop no-such-job", 64, ["no job no-such-job"]),
    ("no jobs", "status", 64, ["no jobs yet"]),
    ("two jobs", "status a b", 64, ["takes one job"]),
    ("job that can be none", "logs ../x", 64, ["../x", "neither a job's id nor a name"]),
    ("status option", "status --jsn", 64, ["--jsn", "did you mean --json?"]),
    ("logs -r", "logs -r 3-1", 64, ["-r", "3-1"]),
    ("logs --attempt", "logs --attempt x", 64, ["--attempt x"]),
    ("stop --grace", "stop --grace x", 64, ["--grace", "x"]),
    ("nodes with a word", "nodes node1", 64, ["node1"]),
    ("dev what", "dev sideways", 64, ["sideways", "up, down or status"]),
    ("dev up -n 0", "dev up -n 0", 64, ["-n 0"]),
    ("dev down -n", "dev down -n 2", 64, ["-n belongs to dgxrun dev up"]),
    ("subcommand with a slip", "staus", 64, ["staus", "did you mean status?"]),
    ("cluster init where", "cluster init", 64, ["cluster init DIR"]),
    ("cluster init over another", "cluster init pki --host h --user u", 78, ["pki/", "exists"]),
    ("cluster init user", "cluster init new --host h --user a/b", 64, ["--user a/b"]),
    ("cluster check", "cluster check ./typo.toml", 78, ["typo.toml:3:1", '"controller"']),
    ("cluster check of certificates", "cluster check ./tls.toml", 78, ["tls.toml", "none.crt"]),
]


def make_files(workspace):
    workspace.write("x.py", f"print('{RAN}')\n")
    os.mkdir(workspace.path("data.py"))
    os.mkdir(workspace.path("pki"))
    workspace.write("pki/ca.key", "")
    workspace.write("noexec", "#!/bin/sh\n")
    workspace.write("typo.toml", '[cluster]\nname = "c"\ncontroler = "h:1"\n')
    workspace.write("plain.toml", '[cluster]\nname = "c"\ncontroller = "localhost:1"\n')
    workspace.write("down.toml", CLUSTER)
    tls = 'ca = "none.crt"\ncert = "none.crt"\nkey = "none.key"\n'
    workspace.write("tls.toml", f'[cluster]\nname = "c"\ncontroller = "localhost:1"\n[tls]\n{tls}')


@pytest.mark.parametrize(("line", "code", "words"), [one[1:] for one in LINES], ids=[one[0] for one in LINES])
def test_command_line(workspace, leaks, line, code, words):
    make_files(workspace)
    check_line(workspace.run(*line.split(), expect=None, seconds=AT_ONCE_S + START_S), code, *words)


ENVIRONMENTS = [
    ({"PYTHON_EXEC": "/nonexistent/python"}, "x.py", 78, ["PYTHON_EXEC=/nonexistent/python"]),
    ({"PYTHON_EXEC": "", "PATH": "/nonexistent"}, "x.py", 78, ["no python", "PYTHON_EXEC", "--no-python"]),
    ({"DGXRUN_STATE_DIR": "/proc/none"}, "x.py", 78, ["/proc/none"]),
    ({"DGXRUN_STATE_DIR": "relative"}, "x.py", 78, ["DGXRUN_STATE_DIR", "relative"]),
    ({"DGXRUN_RUN_DIR": "/etc/passwd"}, "x.py", 78, ["/etc/passwd"]),
    ({"DGXRUN_RUN_DIR": "/dev/shm/" + 110 * "x"}, "x.py", 78, ["xxx", "shorter"]),
    ({"DGXRUN_CLUSTER": "./typo.toml"}, "-n 1 x.py", 78, ["typo.toml:3:1"]),
    ({"DGXRUN_CLUSTER": "none"}, "status", 78, ["no cluster none"]),
]


@pytest.mark.parametrize(
    ("env", "line", "code", "words"), ENVIRONMENTS, ids=["=".join(list(one[0].items())[0])[:40] for one in ENVIRONMENTS]
)
def test_environment(workspace, leaks, env, line, code, words):
    make_files(workspace)
    check_line(workspace.run(*line.split(), env=env, expect=None), code, *words)


def test_working_folder_that_is_gone(workspace, leaks):
    """`sh` removes its own folder and then runs dgxrun in it."""
    folder = workspace.folder("gone")
    done = Running(
        ["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"', *workspace.dgxrun_argv(["--no-python", "true"])],
        env=workspace.env, cwd=folder, out_dir=workspace.out, name="gone",
    )
    workspace.running.append(done)
    done.returncode = done.wait(START_S)
    check_line(done, 78, "working folder")


@pytest.mark.root
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("secret.py", ["secret.py", "cannot be read"]),
        ("--cluster ./secret.toml -n 1 x.py", ["secret.toml", "Permission denied"]),
        ("--cluster ./key.toml -n 1 x.py", ["key.pem", "Permission denied"]),
    ],
)
def test_unreadable_files(workspace, leaks, line, words):
    """Root may read anything, so this is somebody else."""
    make_files(workspace)
    for name in ("secret.py", "secret.toml", "key.pem"):
        workspace.write(name, CLUSTER, mode=0o600)
    workspace.write("key.toml", CLUSTER.replace("unix:/nonexistent/c.sock", "localhost:1")
                    + '[tls]\nca = "x.py"\ncert = "x.py"\nkey = "key.pem"\n')
    for folder in (workspace.root, workspace.cwd):
        os.chmod(folder, 0o755)
    home = workspace.folder("theirs")
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    done = Running(
        ["setpriv", "--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid), "--clear-groups", "--pdeathsig",
         "keep", *workspace.dgxrun_argv(line.split())],
        env={**workspace.env, "HOME": home, "DGXRUN_STATE_DIR": home + "/s", "DGXRUN_RUN_DIR": home + "/r",
             "PYTHON_EXEC": "/usr/bin/python3"},
        cwd=workspace.cwd, out_dir=workspace.out, name="nobody",
    )
    workspace.running.append(done)
    done.returncode = done.wait(START_S)
    check_line(done, 78, *words)


# What the shell did with stdout.
def run_to(workspace, redirect, *args):
    done = Running(
        ["bash", "-c", f'"$0" "$@" {redirect}', *workspace.dgxrun_argv(args)], env=workspace.env, cwd=workspace.cwd,
        out_dir=workspace.out, name=f"to-{len(workspace.running)}",
    )
    workspace.running.append(done)
    done.returncode = done.wait(START_S)
    return done


@pytest.mark.parametrize("line", ["--help", "--version", "nodes", "nodes --json"])
def test_full_stdout_of_a_subcommand(workspace, leaks, line):
    check_line(run_to(workspace, "> /dev/full", *line.split()), 70, "stdout", "No space left on device")


def test_full_stdout_of_a_job(workspace, leaks):
    """The job goes on; what its ranks wrote is in the files; the end is not taken for a success."""
    workspace.write("x.py", f"print('{RAN}')\n")
    done = run_to(workspace, "> /dev/full", "-g", 2, "--name", "full", "x.py")
    assert done.returncode == 70, done.transcript()
    assert done.stderr.count("cannot write to stdout: No space left on device") == 1
    assert workspace.status("full")["state"] == "succeeded"
    assert workspace.run("logs", "full").stdout.count(RAN) == 2
    failed = run_to(workspace, "> /dev/full", "-g", 1, "--max-restarts", 0, "--no-python", "sh", "-c", "echo x; exit 7")
    assert failed.returncode == 7, failed.transcript()


def test_reader_that_goes_away(workspace, leaks):
    """A subcommand ends quietly by SIGPIPE, as others do; a local job is stopped."""
    workspace.write("x.py", f"print('{RAN}')\n")
    workspace.run("--name", "one", "x.py")
    quiet = run_to(workspace, "| true; exit ${PIPESTATUS[0]}", "status", "one", "--json")
    assert quiet.returncode in (0, 141) and quiet.stderr == "", quiet.transcript()
    program = workspace.write("talk.py", "import time\nwhile True: print('x' * 1000)\n")
    done = run_to(workspace, "| head -1; exit ${PIPESTATUS[0]}", "-g", 2, "--name", "talk", program)
    assert done.returncode == 141, done.transcript()
    assert workspace.status("talk")["state"] == "stopped"


class Daemon:
    """dgxrun-controller or dgxrun-agent with one file, to its end."""

    def __init__(self, workspace):
        self.workspace = workspace

    def run(self, program, text, expect, *words, name="daemon.toml", host=None):
        path = self.workspace.write(name, text)
        argv = [os.path.join(self.workspace.bin, program), "--config", path]
        done = Running(
            host.argv(*argv) if host else argv, env=self.workspace.env, cwd=self.workspace.cwd,
            out_dir=self.workspace.out, name=f"daemon-{len(self.workspace.running)}",
        )
        self.workspace.running.append(done)
        done.returncode = done.wait(START_S)
        check_line(done, expect, *words, program=program)


def test_controller_that_cannot_start(workspace, leaks):
    daemon = Daemon(workspace)
    local = f'[cluster]\nname = "c"\ncontroller = "unix:{workspace.root}/c.sock"\n[controller]\n'
    folder = f'state_dir = "{workspace.state}/c"\n'
    pki = workspace.path("pki")
    workspace.run("cluster", "init", pki, "--host", "localhost", "--user", "u")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        net = (
            f'[cluster]\nname = "c"\ncontroller = "localhost:{port}"\n[tls]\nca = "{pki}/ca.crt"\n'
            f'cert = "{pki}/controller.crt"\nkey = "{pki}/controller.key"\n[controller]\n{folder}'
        )
        daemon.run("dgxrun-controller", net + f'listen = "127.0.0.1:{port}"\n', 69, f"127.0.0.1:{port}", "in use", "ss -ltnp")
    daemon.run("dgxrun-controller", net + 'listen = "no-such-host.invalid:7450"\n', 78, "no-such-host.invalid")
    daemon.run("dgxrun-controller", net + 'listen = "192.0.2.1:7450"\n', 78, "192.0.2.1", "Cannot assign")
    daemon.run("dgxrun-controller", local + "state_dir = 7\n", 78, "daemon.toml:5:13", '"state_dir" must be a string')
    daemon.run("dgxrun-controller", local + folder, 78, "listen", "unix_socket")
    daemon.run("dgxrun-controller", local + f'unix_socket = "{workspace.root}/c.sock"\n', 78, "state_dir")
    daemon.run("dgxrun-controller", local + 'state_dir = "/proc/c"\n' + f'unix_socket = "{workspace.root}/c.sock"\n',
               78, "/proc/c")
    os.chmod(f"{pki}/controller.key", 0o644)
    daemon.run("dgxrun-controller", net + 'listen = "127.0.0.1:0"\n', 78, "controller.key", "chmod 600")
    missing = workspace.path("none.toml")
    done = Running([os.path.join(workspace.bin, "dgxrun-controller"), "--config", missing], env=workspace.env,
                   cwd=workspace.cwd, out_dir=workspace.out, name="missing")
    workspace.running.append(done)
    done.returncode = done.wait(START_S)
    check_line(done, 78, missing, program="dgxrun-controller")


def test_two_controllers_on_one_socket(dev):
    workspace = dev.workspace
    text = open(f"{workspace.state}/dev/cluster.toml", encoding="utf-8").read()
    Daemon(workspace).run("dgxrun-controller", text, 69, "control.sock")


def test_agent_that_cannot_start(workspace, leaks):
    daemon = Daemon(workspace)
    head = '[cluster]\nname = "c"\ncontroller = "unix:/nonexistent/c.sock"\n[agent]\n'
    dirs = f'state_dir = "{workspace.state}/a"\nrun_dir = "{workspace.run_dir}/a"\nlog_dir = "{workspace.state}/l"\n'
    daemon.run("dgxrun-agent", head + "gpus = 800\n", 78, "daemon.toml:5:8", "from 0 to 64")
    daemon.run("dgxrun-agent", head + dirs.replace(f"{workspace.state}/a", "/proc/a"), 78, "/proc/a")
    daemon.run("dgxrun-agent", head + dirs.replace(f"{workspace.run_dir}/a", "/proc/r"), 78, "/proc/r")
    daemon.run("dgxrun-agent", head + dirs.replace(f"{workspace.state}/l", "/proc/l"), 78, "/proc/l")


def test_agent_of_a_name_that_is_taken(dev):
    workspace = dev.workspace
    text = open(f"{workspace.state}/dev/node1.toml", encoding="utf-8").read()
    text = text.replace("/node1/state", "/other/state").replace("/node1\"", "/other\"").replace("/node1/logs", "/other/logs")
    Daemon(workspace).run("dgxrun-agent", text, 78, "the name node1 is taken", "[agent] name")


# A cluster of one node with eight declared GPUs, and one port for MASTER_PORT that is taken.

class OneNode:
    def __init__(self, workspace, agent_lines):
        self.workspace = workspace
        self.file = workspace.path("cluster.toml")
        head = f'[cluster]\nname = "one"\ncontroller = "unix:{workspace.root}/c.sock"\n'
        workspace.write("cluster.toml", head)
        controller = workspace.write(
            "controller.toml",
            head + f'[controller]\nstate_dir = "{workspace.state}/c"\nunix_socket = "{workspace.root}/c.sock"\n',
        )
        agent = workspace.write(
            "agent.toml",
            head + f'[agent]\nname = "dgx-01"\nstate_dir = "{workspace.state}/a"\nrun_dir = "{workspace.run_dir}/a"\n'
            f'log_dir = "{workspace.state}/logs"\nallow_root = true\n{agent_lines}',
        )
        self.daemons = []
        for program, path in (("dgxrun-controller", controller), ("dgxrun-agent", agent)):
            running = Running([os.path.join(workspace.bin, program), "--config", path], env=workspace.env,
                              cwd=workspace.cwd, out_dir=workspace.out, name=program)
            workspace.running.append(running)
            self.daemons.append(running)
        workspace.env["DGXRUN_CLUSTER"] = self.file
        wait_until(
            lambda: '"state": "up"' in workspace.run("nodes", "--json", expect=None).stdout, START_S,
            lambda: "\n".join(one.transcript() for one in self.daemons),
        )

    def close(self):
        for one in self.daemons:
            one.signal(signal.SIGTERM)
        for one in self.daemons:
            one.wait(START_S)


@pytest.fixture
def one_node(workspace, leaks):
    made = []

    def make(agent_lines):
        made.append(OneNode(workspace, agent_lines))
        return made[-1]

    yield make
    for one in made:
        one.close()


def last_line(done):
    return done.stderr.splitlines()[-1]


def test_more_than_the_cluster_has(one_node, workspace):
    one_node("gpus = 8\n")
    workspace.write("x.py", f"print('{RAN}')\n")
    for line, code, words in (
        ("-n 1 -g 9 x.py", 78, ["9", "8"]),
        ("-n 2 -g 1 x.py", 78, ["2", "1"]),
        ("-n 1 --ckpt-dir c --name a x.py", None, []),
    ):
        done = workspace.run(*line.split(), expect=None, seconds=START_S)
        if code is not None:
            check_line(done, code, *words)
            assert RAN not in done.stdout
    # Folders and programs are looked for on the node.
    for line, words in (("-n 1 none.py", ["dgx-01", "none.py"]), ("-n 1 --no-python none", ["dgx-01", "none"])):
        done = workspace.run(*line.split(), expect=78, seconds=START_S)
        for word in words:
            assert word in done.stderr, done.transcript()
        assert len([text for text in done.stderr.splitlines() if words[-1] in text]) == 1, done.transcript()


def test_no_free_port_for_the_ranks(one_node, workspace):
    """Every port of the agent's range is somebody else's."""
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        one_node(f"port_range = [{port}, {port}]\n")
        workspace.write("x.py", f"print('{RAN}')\n")
        job = workspace.start("-n", 1, "--name", "portless", "x.py")
        said = job.wait_line(r"^dgxrun: .*port.*$", AT_ONCE_S + 2, stream="stderr").group(0)
        assert "dgx-01" in said and "port_range" in said, job.transcript()
    # Once the port is free the job runs: it was accepted.
    assert job.wait(START_S) == 0, job.transcript()


@pytest.mark.root
def test_network(net):
    """A controller that refuses, that does not answer, that is not the one; a name that nobody knows."""
    workspace = net.workspace
    workspace.write("x.py", f"print('{RAN}')\n")
    with open(net.user_file, encoding="utf-8") as file:
        text = file.read()
    other = workspace.path("other-pki")
    workspace.run("cluster", "init", other, "--host", "10.77.0.1", "--user", workspace.env["USER"])
    good = f"10.77.0.1:{net.port}"
    for name, new, code, words in (
        ("refused", text.replace(good, "10.77.0.1:9"), 69, ["cluster net (10.77.0.1:9)", "cannot be reached"]),
        ("dropped", text.replace(good, "10.77.0.99:7070"), 69, ["cluster net (10.77.0.99:7070)"]),
        ("no name", text.replace(good, "no-such-host.invalid:7070"), 69, ["no-such-host.invalid"]),
        ("certificate", text.replace(net.pki, other), 77, [good, "certificate", "[tls] ca"]),
    ):
        path = workspace.write("c.toml", new)
        done = workspace.run("--cluster", path, "-n", 1, "x.py", expect=None, seconds=AT_ONCE_S + 4)
        check_line(done, code, *words)
    # Dropped on the way, as by a firewall.
    net.network.hub.ip("route", "add", "blackhole", "10.88.0.0/24")
    path = workspace.write("c.toml", text.replace(good, "10.88.0.1:7070"))
    done = workspace.run("status", "--cluster", path, expect=None, seconds=AT_ONCE_S + 4)
    check_line(done, 69, "10.88.0.1:7070")


@pytest.mark.root
@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_node_that_leaves_while_the_job_starts(net, how):
    """Reported within the lease and a second, ended within the fence; the one that is left keeps nothing."""
    workspace = net.workspace
    program = workspace.write("wait.py", "import signal; print('ready'); signal.pause()\n")
    agent = net.agent("node2")
    os.kill(agent.pid, signal.SIGSTOP)  # so that the start waits for it
    job = workspace.start("-n", 2, "--max-restarts", 0, "--grace", "1s", "--name", "left", program)
    job.wait_line(r"\(job ", AT_ONCE_S, stream="stderr")
    wait_until(lambda: workspace.status("left")["state"] == "starting", AT_ONCE_S, "the job starts")
    if how == "killed":
        for pid in (*children(agent.pid), agent.pid):
            os.kill(pid, signal.SIGKILL)
    else:
        net.network.hub.ip("link", "set", "to-node2", "down")

    def node_state():
        return {node["name"]: node["state"] for node in workspace.json("nodes")}["node2"]

    wait_until(lambda: node_state() == "lost", net.node_lease_ms / 1000 + 1 + 1, node_state)
    assert job.wait(net.fenced_s + START_S) == 69, job.transcript()
    why = workspace.why("left")
    assert (why["cause"], why["node"]) == ("node_lost", "node2")
    assert "node2" in job.stderr and "ready" not in job.stdout
    if how == "cut off":
        net.network.hub.ip("link", "set", "to-node2", "up")
        os.kill(agent.pid, signal.SIGCONT)
    else:
        net.daemon_of["node2"].wait(5)
        net.start_agent("node2")
    mode_up(net)
    workspace.run("-n", 2, "--no-python", "true")


@pytest.mark.root
def test_full_disk_under_the_logs_before_the_start(workspace, box):
    """The ranks run, as on a disk that fills up later (test_lost_output.py); what is missing is named."""
    logs = box.small_disk(os.path.join(workspace.state, "local"))
    box.fill(logs)
    workspace.write("x.py", f"print('{RAN}')\nopen('ran', 'w').close()\n")
    done = workspace.run("-g", 2, "x.py")
    assert os.path.exists(workspace.path("ran"))
    assert re.search(
        f"^dgxrun: dgxrun status will not know this job: .*{logs}/.*No space left on device$", done.stderr, re.M
    ), done.transcript()
    assert re.search("of output could not be written: .*No space left on device", last_line(done)), done.transcript()


@pytest.mark.root
def test_full_disk_under_the_controllers_log(workspace, box):
    """Jobs run on; a submit is refused with the file's name; once there is room all is as before, and what had
    been accepted is there."""
    folder = box.small_disk(os.path.join(workspace.state, "dev", "controller"), size="512k")
    dev = modes.DevMode(workspace)
    try:
        program = workspace.write(
            "go.py",
            "import os, signal, sys\nprint('ready')\n"
            "while not os.path.exists('go'): signal.sigtimedwait([signal.SIGUSR1], 0.01)\n",
        )
        job = workspace.start("-n", 2, "--name", "before", program)
        job.wait_line("(?s)ready.*ready", START_S)
        ranks = [process(rank["pid"]) for rank in workspace.ranks("before").values()]
        ballast = box.fill(folder)
        workspace.write("x.py", f"print('{RAN}')\n")

        # The log has some room of its own; when that is used up, submits are refused, and nothing else happens.
        def refused():
            done = workspace.run("-n", 2, "--name", "during", "x.py", expect=None)
            return done if done.returncode != 0 else None

        done = wait_until(refused, START_S, "a submit is refused")
        check_line(done, 78, folder, "until there is room")
        assert all(one.alive() for one in ranks)
        assert workspace.status("before")["state"] == "running"
        os.remove(ballast)
        wait_until(
            lambda: workspace.run("-n", 2, "--name", "after", "x.py", expect=None).returncode == 0, START_S,
            "submits are taken again",
        )
        workspace.write("go", "")
        assert job.wait(START_S) == 0, job.transcript()
        assert workspace.status("before")["restarts"] == 0
    finally:
        if os.path.exists(box.path(folder) + "/ballast"):
            os.remove(box.path(folder) + "/ballast")
        dev.close()
