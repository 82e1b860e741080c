"""Fixtures of the end-to-end tests. They run the real programs, each test in folders of its own.

Whatever happens, nothing stays behind: a test's processes die with it (below), and if pytest itself is
killed, the janitor sees it and kills and removes the rest.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import cgroups, modes  # noqa: E402
from harness.box import Box  # noqa: E402
from harness.leaks import LeakChecker  # noqa: E402
from harness.process import become_subreaper, descendants, process, reap_strays  # noqa: E402
from harness.workspace import Workspace  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "root: makes network namespaces or changes accounts, so needs root")
    become_subreaper()


def pytest_collection_modifyitems(items):
    for item in items:
        call = getattr(item, "callspec", None)
        if call and call.params.get("mode") == "net":
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def session_jobs():
    """Ids of the jobs of the tests so far, whose folders are gone."""
    return set()


@pytest.fixture(scope="session")
def session_dir(session_jobs):
    """(token, folder) of this pytest; the folder is on a tmpfs, as run folders must be."""
    token = "dgxe2e-" + secrets.token_hex(4)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    folder = os.path.join(base, token)
    os.mkdir(folder, mode=0o711)
    janitor = subprocess.Popen(
        [sys.executable, os.path.join(os.path.dirname(__file__), "harness", "janitor.py"), token, folder],
        stdin=subprocess.PIPE, start_new_session=True,
    )
    yield token, folder, process(janitor.pid)
    session_jobs.update(cgroups.job_ids(folder))
    left = cgroups.cgroups(session_jobs)
    cgroups.remove(left)
    shutil.rmtree(folder, ignore_errors=True)
    janitor.stdin.close()
    janitor.wait(timeout=60)
    assert not left, f"cgroups of this session's jobs were left: {left}"


@pytest.fixture
def workspace(session_dir):
    token, folder, _ = session_dir
    place = Workspace(folder, token)
    yield place
    place.remove()


@pytest.fixture
def leaks(workspace, session_dir, session_jobs):
    """Made before any cluster, checked after it is down: the last word of every test."""
    checker = LeakChecker(workspace, {session_dir[2], *descendants()})
    yield checker
    try:
        checker.check_all_gone(modes.PROMPT_S)
    finally:
        workspace.close()
        for one in descendants():
            if one not in checker.own:
                try:
                    os.kill(one.pid, 9)
                except ProcessLookupError:
                    pass
        reap_strays(set())
        # Of a test that failed: its shims were killed just now and remove nothing.
        jobs = cgroups.job_ids(workspace.root)
        session_jobs.update(jobs)
        cgroups.remove(cgroups.cgroups(jobs))


@pytest.fixture
def local(workspace, leaks):
    mode = modes.LocalMode(workspace)
    yield mode
    mode.close()


@pytest.fixture
def dev(workspace, leaks):
    mode = modes.DevMode(workspace)
    yield mode
    mode.close()


@pytest.fixture
def net(workspace, leaks):
    mode = modes.NetMode(workspace)
    yield mode
    mode.close()


@pytest.fixture
def box(workspace, leaks):
    made = Box(workspace)
    yield made
    made.close()


@pytest.fixture
def mode(request, workspace, leaks):
    """Parametrize with indirect=True over "local", "dev" and "net"."""
    made = modes.MODES[request.param](workspace)
    yield made
    made.close()
