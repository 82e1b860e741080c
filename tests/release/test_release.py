"""What must hold of the release archive (deploy/release.sh makes it)."""

import configparser
import os
import re
import shutil
import subprocess

import pytest

PROGRAMS = ["dgxrun", "dgxrun-controller", "dgxrun-agent", "dgxrun-shim"]
# What every Linux with a C library and gcc's run time has.
SYSTEM_LIBRARIES = re.compile(r"^(linux-vdso|lib(c|m|dl|pthread|rt|resolv|gcc_s)|/lib64/ld-linux-x86-64)\.so\.\d+$")
MAX_GLIBC = (2, 34)  # RHEL 9
EACH_PROGRAM = pytest.mark.parametrize("program", PROGRAMS)


def output(*argv, **options):
    return subprocess.run(argv, check=True, capture_output=True, text=True, **options).stdout


@EACH_PROGRAM
def test_needs_the_c_library_only(unpacked, program):
    needed = [line.split()[0] for line in output("ldd", f"{unpacked}/bin/{program}").splitlines()]
    assert needed and not [name for name in needed if not SYSTEM_LIBRARIES.match(name)], needed


@EACH_PROGRAM
def test_runs_with_glibc_2_34(unpacked, program):
    symbols = output("objdump", "-T", f"{unpacked}/bin/{program}")
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", symbols)}
    newest = max(versions)
    what = [line.split()[-1] for line in symbols.splitlines() if "GLIBC_" + ".".join(map(str, newest)) in line]
    assert newest <= MAX_GLIBC, f"{newest}: {what}"


@EACH_PROGRAM
def test_says_its_version(unpacked, program):
    version = re.search(r"dgxrun-([\d.]+)-linux", os.path.basename(unpacked)).group(1)
    assert version in output(f"{unpacked}/bin/{program}", "--version")


def test_holds_what_an_install_needs(unpacked, archive):
    for path in (
        "LICENSE", "README.md", "SHA256SUMS", "configs/localhost.toml", "docs/install.md", "docs/cli.md",
        "docs/examples/train_gpt.py", "systemd/dgxrun-controller.service", "systemd/dgxrun-agent.service",
        "licenses/libgrpc-dev.txt",
    ):
        assert os.path.isfile(os.path.join(unpacked, path)), path
    output("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=unpacked)
    output("sha256sum", "--check", "--quiet", archive + ".sha256", cwd=os.path.dirname(archive))
    listed = output("tar", "-tvzf", archive)
    assert "root/root" not in listed and re.search(r" 0/0 ", listed)  # whoever built it is not in it


def test_a_local_job(local):
    done = local.workspace.run("-g", 2, "--no-python", "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert "rank 0 of 2" in done.stdout and "rank 1 of 2" in done.stdout, done.transcript()


def test_a_local_job_that_fails(local):
    local.workspace.run("-g", 2, "--max-restarts", 1, "--no-python", "/bin/sh", "-c", "exit 7", expect=7)


def test_a_cluster(dev):
    """Controller and agents find their programs, too; a rank that fails is restarted across nodes."""
    workspace = dev.workspace
    done = workspace.run(
        *dev.launch_args(2), "--name", "c", "--no-python", "/bin/sh", "-c",
        'test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit "$RANK"')
    assert "restart 1 of 3" in done.stderr, done.transcript()
    assert workspace.status("c")["state"] == "succeeded"


def units(unpacked):
    folder = os.path.join(unpacked, "systemd")
    found = {}
    for name in sorted(os.listdir(folder)):
        parser = configparser.ConfigParser(strict=True, interpolation=None)
        parser.optionxform = str
        parser.read(os.path.join(folder, name), encoding="utf-8")
        found[name] = parser
    return found


def test_units_do_what_the_design_asks(unpacked):
    agent = units(unpacked)["dgxrun-agent.service"]["Service"]
    controller = units(unpacked)["dgxrun-controller.service"]["Service"]
    for service in (agent, controller):
        # Back long before the leases of ranks run out; and what lies in /run outlives the process.
        assert (service["Restart"], service["RestartSec"]) == ("always", "100ms")
        assert service["RuntimeDirectoryPreserve"] == "yes"
        assert "78" in service["RestartPreventExitStatus"].split()
    # Ranks outlive the agent, are the agent's to hold, and inherit nothing that breaks them.
    assert (agent["KillMode"], agent["Delegate"], agent["OOMPolicy"]) == ("process", "yes", "continue")
    assert (agent["TasksMax"], agent["LimitMEMLOCK"]) == ("infinity", "infinity")
    hardening = re.compile(r"^(Protect|Private|Restrict|NoNewPrivileges|MemoryDeny|SystemCall|Capability|Device|User)")
    assert not [key for key in agent if hardening.match(key)]


@pytest.mark.parametrize("name", ["dgxrun-controller.service", "dgxrun-agent.service"])
def test_units_are_valid(unpacked, tmp_path, name):
    """systemd's own word, where its tool is; the paths and the account of an install are not there."""
    analyze = shutil.which("systemd-analyze")
    text = open(os.path.join(unpacked, "systemd", name), encoding="utf-8").read()
    keys = re.findall(r"^(?:([A-Z]\w+)=|\[(\w+)\]$)", text, re.MULTILINE)
    assert {section for _, section in keys if section} == {"Unit", "Service", "Install"}
    if analyze is None:
        return
    text = text.replace("/opt/dgxrun/bin", f"{tmp_path}/bin").replace("User=dgxrun", "User=root").replace("Group=dgxrun", "Group=root")
    shutil.copytree(os.path.join(unpacked, "bin"), tmp_path / "bin")
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run([analyze, "verify", tmp_path / name], capture_output=True, text=True, check=False)
    # Other units of the machine may be found wanting; only what names ours counts.
    assert not [line for line in (done.stdout + done.stderr).splitlines() if "dgxrun" in line], done.stderr
