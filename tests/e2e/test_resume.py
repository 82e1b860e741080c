"""--ckpt-dir and --resume-arg: which checkpoint an attempt is given."""

import os

import pytest

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
SHOW = (
    "import os, sys\n"
    "print('resume', os.environ.get('DGXRUN_RESUME_FROM'), sys.argv[1:])\n"
)


def make(workspace, *names):
    os.makedirs(workspace.path("ckpt"), exist_ok=True)
    for name in names:
        path = workspace.path(f"ckpt/{name}")
        if name.endswith("/"):
            os.mkdir(path)
        else:
            workspace.write(f"ckpt/{name}", "x")


@ALL_MODES
def test_newest_by_number(mode):
    workspace = mode.workspace
    make(workspace, "step_9.pt", "step_100.pt", "step_20/", "step_300.pt.tmp", "step_400.partial", ".step_500.pt")
    program = workspace.write("show.py", SHOW)
    done = workspace.run(
        *mode.launch_args(2), "--ckpt-dir", "ckpt", "--resume-arg", "--resume '{}' --strict", "--name", "r", program, "--lr", "1"
    )
    newest = workspace.path("ckpt/step_100.pt")
    line = f"resume {newest} {['--lr', '1', '--resume', newest, '--strict']}"
    assert done.stdout.count(line) == 2, done.transcript()
    status = workspace.status("r")
    assert (status["checkpoint"], status["checkpoint_step"]) == (newest, 100)


def test_a_folder_is_a_checkpoint_too(local):
    workspace = local.workspace
    make(workspace, "step_9.pt", "step_20/", "step_30/")
    workspace.write("ckpt/step_20/model", "x")  # the other one is empty: nothing was saved there
    done = workspace.run("--ckpt-dir", "ckpt", workspace.write("show.py", SHOW))
    assert f"resume {workspace.path('ckpt/step_20')} []" in done.stdout


def test_by_time_where_no_name_has_a_number(local):
    workspace = local.workspace
    make(workspace, "older.pt", "newer.pt")
    os.utime(workspace.path("ckpt/older.pt"), (1_000_000, 1_000_000))
    os.utime(workspace.path("ckpt/newer.pt"), (2_000_000, 2_000_000))
    done = workspace.run("--ckpt-dir", "ckpt", workspace.write("show.py", SHOW))
    assert f"resume {workspace.path('ckpt/newer.pt')} []" in done.stdout


@pytest.mark.parametrize("prepare", [False, True])
def test_nothing_to_resume_from(local, prepare):
    """No folder yet, or nothing complete in it: no variable and no argument."""
    workspace = local.workspace
    if prepare:
        make(workspace, "step_1.pt.tmp")
    done = workspace.run("--ckpt-dir", "ckpt", "--resume-arg", "--resume {}", workspace.write("show.py", SHOW))
    assert "resume None []" in done.stdout


@ALL_MODES
def test_each_attempt_looks_again(mode):
    workspace = mode.workspace
    os.mkdir(workspace.path("ckpt"))
    program = workspace.write(
        "steps.py",
        "import os, sys\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('attempt', attempt, os.path.basename(os.environ.get('DGXRUN_RESUME_FROM', 'none')))\n"
        "if os.environ['RANK'] == '0':\n"
        "    open(f'ckpt/step_{attempt}.pt', 'w').write('x')\n"
        "    sys.exit(1 if attempt < 2 else 0)\n"
        "if attempt < 2:\n"
        "    import signal; signal.pause()\n",
    )
    done = workspace.run(*mode.launch_args(2), "--ckpt-dir", "ckpt", "--grace", "2s", program)
    for attempt, name in ((0, "none"), (1, "step_0.pt"), (2, "step_1.pt")):
        assert done.stdout.count(f"attempt {attempt} {name}\n") >= 1
        assert done.stdout.count(f"attempt {attempt} ") == done.stdout.count(f"attempt {attempt} {name}\n")
    assert "step_1.pt" in done.stderr  # the restart notice says from where
