"""A private place for one test: home, state, run and working folders, and the dgxrun commands in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from harness.process import Running, die_with_parent

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RANKS = os.path.join(REPOSITORY, "tests", "e2e", "ranks")
TRAIN_GPT = os.path.join(REPOSITORY, "docs", "examples", "train_gpt.py")
COMMAND_S = 60  # for one dgxrun command that should end by itself; two loaded cores and torch need some


def binaries():
    """The folder with dgxrun and its three companions."""
    folder = os.environ.get("DGXRUN_BIN") or os.path.join(REPOSITORY, "build", "debug", "bin")
    for name in ("dgxrun", "dgxrun-controller", "dgxrun-agent", "dgxrun-shim"):
        path = os.path.join(folder, name)
        if not os.access(path, os.X_OK):
            raise RuntimeError(f"{path} is missing: build it (deploy/test.sh) or set DGXRUN_BIN")
    return os.path.abspath(folder)


class Workspace:
    """`token` is in the path and in the environment of all that the test starts; `root` is below it."""

    def __init__(self, session_dir, token):
        self.bin = binaries()
        # Short, since socket paths below it are limited to 107 bytes.
        self.root = tempfile.mkdtemp(prefix="t", dir=session_dir)
        self.token = token
        self.state = self.folder("state")
        self.run_dir = self.folder("run")
        self.home = self.folder("home")
        self.cwd = self.folder("work")
        self.out = self.folder("out")
        self.env = {
            "PATH": self.bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": self.home,
            "USER": os.environ.get("USER", "root"),
            "LANG": "C.UTF-8",
            "DGXRUN_STATE_DIR": self.state,
            "DGXRUN_RUN_DIR": self.run_dir,
            "PYTHON_EXEC": sys.executable,
            "E2E_TOKEN": token,
        }
        if os.environ.get("DGXRUN_NO_CGROUP"):
            self.env["DGXRUN_NO_CGROUP"] = os.environ["DGXRUN_NO_CGROUP"]
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        self.host = None  # a netns.Host that dgxrun is run on; None: right here
        self.running = []

    def folder(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(path, mode=0o700)
        return path

    def path(self, name):
        return os.path.join(self.cwd, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def dgxrun_argv(self, args, cwd=None):
        argv = [os.path.join(self.bin, "dgxrun"), *map(str, args)]
        return self.host.argv(*argv, cwd=cwd or self.cwd) if self.host else argv

    def start(self, *args, env=None, cwd=None):
        """Starts dgxrun and returns at once."""
        running = Running(
            self.dgxrun_argv(args, cwd),
            env={**self.env, **(env or {})},
            cwd=cwd or self.cwd,
            out_dir=self.out,
            name=f"{len(self.running)}",
        )
        self.running.append(running)
        return running

    def run(self, *args, expect=0, env=None, cwd=None, seconds=COMMAND_S):
        """Runs dgxrun to its end; `expect` is its exit code (None: any). Returns the ended Running."""
        running = self.start(*args, env=env, cwd=cwd)
        code = running.wait(seconds)
        running.returncode = code
        if expect is not None:
            assert code == expect, f"exit code {code}, not {expect}\n{running.transcript()}"
        return running

    def json(self, *args):
        """What a subcommand prints with --json."""
        done = self.run(*args, "--json")
        return json.loads(done.stdout)

    def status(self, *args):
        return self.json("status", *args)

    def why(self, *args):
        return self.json("why", *args)["why"]

    def ranks(self, *args):
        """{global rank: its object in status --json, with the node's name added}."""
        return {
            rank["rank"]: {**rank, "node": node["name"]}
            for node in self.status(*args)["nodes"]
            for rank in node["ranks"]
        }

    def known_pids(self):
        return {running.pid for running in self.running}

    def close(self):
        for running in self.running:
            running.kill()

    def remove(self):
        shutil.rmtree(self.root, ignore_errors=True)


def check_output(argv, **options):
    """A tool of the test itself (ip, nsenter, ...): its output; an error shows what it said."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S,
        preexec_fn=die_with_parent, check=False, **options,
    )
    assert done.returncode == 0, f"{' '.join(argv)}: exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout
