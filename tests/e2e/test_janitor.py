"""The clean-up after a pytest that was killed."""

import os
import secrets
import signal
import subprocess
import sys

from harness.netns import HUB_ADDRESS
from harness.process import descendants, process, wait_gone

HERE = os.path.dirname(os.path.abspath(__file__))
# A pytest in small: the real fixtures' parts, and nobody to take them down.
KILLED = """
import os, subprocess, sys
sys.path.insert(0, {here!r})
token, folder = {token!r}, {folder!r}
janitor = subprocess.Popen([sys.executable, {here!r} + "/harness/janitor.py", token, folder],
                           stdin=subprocess.PIPE, start_new_session=True)
env = {{"E2E_TOKEN": token, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "0", "WORLD_SIZE": "1"}}
subprocess.Popen([sys.executable, {here!r} + "/ranks/stubborn.py", folder, "wait"], env=env, start_new_session=True)
subprocess.Popen(["setsid", "--fork", "sh", "-c", "exec sleep 1000 # " + folder], env=env)
from harness.waiting import wait_until
wait_until(lambda: os.path.exists(folder + "/rank_0.0.json"), 20, "the rank")
print("ready", flush=True)
sys.stdin.read()
"""


def test_nothing_survives_a_killed_pytest(workspace, leaks):
    token = "dgxe2e-" + secrets.token_hex(4)
    folder = os.path.join(workspace.root, token)
    os.mkdir(folder)
    before = set(descendants())
    code = KILLED.format(here=HERE, token=token, folder=folder)
    killed = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=workspace.env
    )
    assert killed.stdout.readline() == "ready\n"
    made = [one for one in descendants() if one not in before]
    marked = [one for one in made if not _without_environment(one.pid)]
    assert len(marked) >= 5  # itself, the janitor, the rank, a grandchild, the sleeper
    killed.kill()
    killed.wait()
    killed.stdin.close()
    killed.stdout.close()
    wait_gone(marked, 20)
    assert not os.path.exists(folder)
    # `env -i sleep` carries no mark. In a job it is the shim that ends it; here it is nobody's.
    for one in set(made) - set(marked):
        os.kill(one.pid, signal.SIGKILL)


def _without_environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return not file.read()


def test_hosts_end_with_their_holder(workspace, leaks):
    """A namespace lives as long as the process in it; that one dies with pytest."""
    if os.geteuid() != 0:
        # The same without namespaces: the death signal of a child.
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1])\n"
             "import subprocess; from harness.process import die_with_parent\n"
             "p = subprocess.Popen(['sleep', '1000'], preexec_fn=die_with_parent); print(p.pid, flush=True); input()", HERE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
    else:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1])\n"
             "from harness.netns import Network\n"
             "n = Network(sys.argv[2], 2); print(n.hub.holder.pid, flush=True); input()", HERE, workspace.root],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **workspace.env},
        )
    holder = process(int(child.stdout.readline()))
    children = [one for one in descendants(child.pid)]
    assert holder in children
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    wait_gone(children, 5)
    assert HUB_ADDRESS not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout
