"""The release archive, unpacked; its programs are what the end-to-end fixtures run."""

import glob
import importlib.util
import os
import shutil
import subprocess
import tempfile

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The fixtures of tests/e2e (workspace, local, dev, ...), which see to it that nothing is left.
_spec = importlib.util.spec_from_file_location("e2e_conftest", os.path.join(REPOSITORY, "tests", "e2e", "conftest.py"))
_e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_e2e)
globals().update({name: value for name, value in vars(_e2e).items() if not name.startswith("_")})


@pytest.fixture(scope="session")
def archive():
    """$DGXRUN_ARCHIVE, else the newest that deploy/release.sh has made."""
    given = os.environ.get("DGXRUN_ARCHIVE")
    found = [given] if given else glob.glob(os.path.join(REPOSITORY, "build", "dgxrun-*.tar.gz"))
    assert found, "make the archive first: deploy/release.sh"
    return max(found, key=os.path.getmtime)


@pytest.fixture(scope="session", autouse=True)
def unpacked(archive):
    """Unpacked at a place that nobody would choose: the programs must find each other anywhere."""
    folder = tempfile.mkdtemp(prefix="a place with blanks ")
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    (top,) = os.listdir(folder)
    before = os.environ.get("DGXRUN_BIN")
    os.environ["DGXRUN_BIN"] = os.path.join(folder, top, "bin")
    yield os.path.join(folder, top)
    if before is None:
        del os.environ["DGXRUN_BIN"]
    else:
        os.environ["DGXRUN_BIN"] = before
    shutil.rmtree(folder)
