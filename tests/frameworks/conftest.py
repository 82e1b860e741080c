"""Real frameworks against the judge of checkpoints. What is installed decides nothing: a framework that is
missing is a failure (deploy/setup.sh installs them all, deploy/requirements-frameworks.txt)."""

import fcntl
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import fw_formats  # noqa: E402

# Imports take 20 s on a busy machine, two runs of two ranks some more.
FORGE_LIMIT_S = 400


def run_tool(script, *arguments, limit_s):
    """Runs one of the scripts beside this file with the Python of the tests; gives its output."""
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"{script} {arguments}: exit {done.returncode}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def forged(tmp_path_factory):
    """name -> folder with two saves of the format by the real library; "name.again" is a second run. Formats
    of one module are made together, and once for all workers of pytest-xdist: the import of the framework is
    what takes long."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def get(name, wanted):
        module = fw_formats.FORMATS[name][0]
        folder = shared / f"forged-{module}"
        with open(shared / f"forged-{module}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                folder.mkdir()
                names = [one for one in wanted if fw_formats.FORMATS[one][0] == module]
                run_tool("forge.py", folder, *names, limit_s=FORGE_LIMIT_S)
        return str(folder / name)

    return get
