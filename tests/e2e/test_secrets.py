"""A token in the caller's environment reaches the ranks, and is found nowhere else but in the one 0600
file that the controller keeps while the job lives."""

import hashlib
import os
import secrets
import stat

import pytest

from harness.process import descendants, executable
from harness.workspace import RANKS

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
START_S = 20


def files_with(folder, needle):
    """Regular files below the folder that contain the bytes."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                with open(path, "rb") as file:
                    if needle in file.read():
                        found.append(path)
            except FileNotFoundError:
                pass
    return found


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


@ALL_MODES
def test_token_reaches_ranks_and_nothing_else(mode):
    workspace = mode.workspace
    token = "tok-" + secrets.token_hex(16)
    needle = token.encode()
    dgxrun = workspace.start(
        *mode.launch_args(2), "--name", "secret",
        os.path.join(RANKS, "token_hash.py"), workspace.cwd, env={"E2E_API_TOKEN": token},
    )
    digest = hashlib.sha256(needle).hexdigest()
    for rank, node in enumerate((mode.node_names[0], mode.node_names[-1])):
        dgxrun.wait_line(rf"^\[{node}:{rank}\] hash {digest}$", START_S)

    blobs = files_with(workspace.root, needle)
    assert len(blobs) == 1, blobs
    facts = os.lstat(blobs[0])
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert os.path.basename(os.path.dirname(blobs[0])) == "env"

    ours = [one for one in descendants() if executable(one.pid).startswith("dgxrun")]
    assert len(ours) >= 3  # dgxrun, guard and shim at least
    for one in ours:
        assert needle not in read(f"/proc/{one.pid}/cmdline")
        if one.pid != dgxrun.pid:
            name = executable(one.pid)
            assert needle not in read(f"/proc/{one.pid}/environ"), f"environment of {name} {one.pid}"

    said = []
    for args in (("status", "secret"), ("status", "secret", "--json"), ("status", "--all"), ("nodes", "--json"),
                 ("logs", "secret")):
        done = workspace.run(*args)
        said.append(done.stdout + done.stderr)
    assert token not in "".join(said)

    workspace.write("go", "")
    assert dgxrun.wait(START_S) == 0, dgxrun.transcript()
    assert files_with(workspace.root, needle) == []
    done = workspace.run("status", "secret", "--json")
    assert token not in done.stdout + done.stderr


def test_secrets_of_the_command_line_are_not_shown(local):
    """What a user types is in argv and so in the job's spec; what dgxrun prints hides it all the same."""
    workspace = local.workspace
    program = workspace.write("fail.py", "import sys; sys.exit(4)\n")
    done = workspace.run(
        "--max-restarts", 0, "--name", "argv", "--export", "ALL,HF_TOKEN=hushed-1", program, "WANDB_API_KEY=hushed-2",
        expect=4,
    )
    said = done.stdout + done.stderr
    for args in (("status", "argv"), ("status", "argv", "--json"), ("why", "argv")):
        more = workspace.run(*args)
        said += more.stdout + more.stderr
    assert "hushed" not in said
    assert "WANDB_API_KEY=***" in said
