"""Who may do what: TLS on the network, accounts on one machine."""

import os
import pwd
import signal
import stat
import subprocess

import pytest

from harness.modes import PROMPT_S, UP_S
from harness.netns import HUB_ADDRESS
from harness.process import Running, process, wait_gone
from harness.waiting import wait_until
from harness.workspace import RANKS, check_output

pytestmark = pytest.mark.root
START_S = 20
NOBODY = pwd.getpwnam("nobody")


def test_the_network_port_has_no_plaintext(net):
    """Neither without certificates, nor with those of another authority."""
    workspace = net.workspace
    program = workspace.write("x.py", "print('ran')\n")
    plain = workspace.write("plain.toml", f'[cluster]\nname = "net"\ncontroller = "{HUB_ADDRESS}:{net.port}"\n')
    done = workspace.run("--cluster", plain, "-n", 1, program, expect=None, seconds=20)
    assert done.returncode in (69, 77, 78) and "tls" in done.stderr.lower()

    other = os.path.join(workspace.root, "other-pki")
    workspace.run("cluster", "init", other, "--host", HUB_ADDRESS, "--user", workspace.env["USER"])
    with open(net.user_file, encoding="utf-8") as file:
        foreign = workspace.write("foreign.toml", file.read().replace(net.pki, other))
    done = workspace.run("--cluster", foreign, "-n", 1, program, expect=None, seconds=20)
    assert done.returncode in (69, 77), done.transcript()
    assert "ran" not in done.stdout


def test_cluster_init_protects_keys_and_overwrites_nothing(workspace):
    folder = os.path.join(workspace.root, "pki")
    workspace.run("cluster", "init", folder, "--host", "login", "--user", "ada", "--user", "bob")
    keys = [name for name in os.listdir(folder) if name.endswith(".key")]
    assert {"ca.key", "controller.key", "agent.key", "user-ada.key", "user-bob.key"} == set(keys)
    for name in keys:
        assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600
    check_output(["openssl", "verify", "-CAfile", f"{folder}/ca.crt", f"{folder}/agent.crt", f"{folder}/user-ada.crt"])
    workspace.run("cluster", "init", folder, "--host", "login", "--user", "ada", expect=78)


class SharedMachine:
    """A root controller and a root agent on a unix socket for every account of this machine."""

    def __init__(self, workspace):
        self.workspace = workspace
        os.chmod(workspace.root, 0o755)
        self.public = os.path.join(workspace.root, "public")
        os.mkdir(self.public)
        os.chmod(self.public, 0o1777)
        socket = f"{workspace.root}/public/control.sock"
        common = f'[cluster]\nname = "shared"\ncontroller = "unix:{socket}"\n'
        self.client = self._file("client", common)
        controller = self._file(
            "controller",
            common + f'[controller]\nstate_dir = "{workspace.state}/c"\nunix_socket = "{socket}"\nany_user = true\n',
        )
        agent = self._file(
            "agent",
            common + f'[agent]\nname = "box"\nstate_dir = "{workspace.state}/a"\nrun_dir = "{workspace.run_dir}"\n'
            f'log_dir = "{self.public}/logs"\n',
        )
        self.daemons = [self._start("dgxrun-controller", controller), self._start("dgxrun-agent", agent)]

    def wait_up(self):
        wait_until(self._up, UP_S, lambda: "\n".join(d.transcript() for d in self.daemons))

    def _file(self, name, text):
        path = os.path.join(self.workspace.root, name + ".toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _start(self, program, config):
        running = Running(
            [os.path.join(self.workspace.bin, program), "--config", config], env=self.workspace.env,
            cwd=self.workspace.root, out_dir=self.workspace.out, name=program,
        )
        self.workspace.running.append(running)
        return running

    def _up(self):
        done = self.workspace.run("nodes", "--cluster", self.client, "--json", expect=None)
        return done.returncode == 0 and '"state": "up"' in done.stdout

    def as_nobody(self, *args):
        """Starts dgxrun as an ordinary user with folders of its own."""
        home = os.path.join(self.public, "home")
        if not os.path.exists(home):
            os.mkdir(home)
            os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
        env = {**self.workspace.env, "HOME": home, "USER": "nobody", "DGXRUN_STATE_DIR": home + "/state",
               "DGXRUN_RUN_DIR": home + "/run", "PYTHON_EXEC": "/usr/bin/python3"}
        running = Running(
            ["setpriv", "--reuid", str(NOBODY.pw_uid), "--regid", str(NOBODY.pw_gid), "--clear-groups",
             "--pdeathsig", "keep", *self.workspace.dgxrun_argv(args)],
            env=env, cwd=self.public, out_dir=self.workspace.out, name=f"nobody-{len(self.workspace.running)}",
        )
        self.workspace.running.append(running)
        return running

    def close(self):
        for one in self.daemons:
            one.popen.send_signal(signal.SIGTERM)
        for one in self.daemons:
            one.wait(UP_S)


@pytest.fixture
def shared(workspace, leaks):
    machine = SharedMachine(workspace)
    try:
        machine.wait_up()
        yield machine
    finally:
        machine.close()


def test_ranks_run_as_the_caller(shared):
    workspace = shared.workspace
    with open(os.path.join(RANKS, "stubborn.py"), encoding="utf-8") as file:
        program = os.path.join(shared.public, "stubborn.py")
        with open(program, "w", encoding="utf-8") as copy:
            copy.write(file.read())
    job = shared.as_nobody(
        "--cluster", shared.client, "-n", 1, "-g", 2, "--grace", "300ms", "--name", "theirs",
        program, os.path.join(shared.public, "home"), "wait",
    )
    names = [os.path.join(shared.public, "home", f"rank_{rank}.0.json") for rank in range(2)]
    wait_until(
        lambda: all(map(os.path.exists, names)) or job.popen.poll() is not None, START_S, job.transcript
    )
    assert job.popen.poll() is None, job.transcript()
    status = workspace.status("theirs", "--cluster", shared.client)
    assert status["owner"] == "nobody"
    ranks = [rank["pid"] for node in status["nodes"] for rank in node["ranks"]]
    for pid in ranks:
        assert os.stat(f"/proc/{pid}").st_uid == NOBODY.pw_uid
    for folder, _, files in os.walk(status["nodes"][0]["log_dir"]):
        for name in files:
            facts = os.stat(os.path.join(folder, name))
            assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (NOBODY.pw_uid, 0o600)

    # Nobody may not stop root's jobs, nor read their output; here: another account, the daemon's.
    denied = subprocess.run(
        ["setpriv", "--reuid", "1", "--regid", "1", "--clear-groups", *workspace.dgxrun_argv(
            ["stop", status["job"], "--cluster", shared.client])],
        env={**workspace.env, "HOME": "/", "DGXRUN_STATE_DIR": "/nonexistent", "DGXRUN_RUN_DIR": "/nonexistent"},
        cwd="/", capture_output=True, text=True, timeout=START_S, check=False,
    )
    assert denied.returncode in (64, 77), denied.stdout + denied.stderr
    started = [process(pid) for pid in ranks]
    assert all(one.alive() for one in started)

    job.signal(signal.SIGINT)
    wait_gone(started, PROMPT_S)
    assert job.wait(START_S) == 130, job.transcript()


def test_root_agent_refuses_root_ranks(shared):
    done = shared.workspace.run(
        "--cluster", shared.client, "-n", 1, "--name", "mine", "--no-python", "true", expect=None
    )
    assert done.returncode in (77, 78), done.transcript()
    assert "root" in done.stderr


def test_folder_that_the_caller_may_not_enter(shared):
    """The agent is root, but looks as the caller."""
    private = os.path.join(shared.public, "private")
    os.mkdir(private, mode=0o700)
    with open(os.path.join(private, "x.py"), "w", encoding="ascii") as file:
        file.write("print('ran')\n")
    job = shared.as_nobody("--cluster", shared.client, "-n", 1, "--name", "closed", os.path.join(private, "x.py"))
    assert job.wait(START_S) == 78, job.transcript()
    assert private in job.stderr and "ran" not in job.stdout
