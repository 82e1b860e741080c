"""Two loops that a job cannot leave by itself: the newest checkpoint is damaged, so each restart loads it and
fails again; and Megatron's pointer is empty, so each start ends at once with status 0, or begins at step 0."""

import os
import subprocess
import sys

import pytest

ATTEMPTS_S = 240  # imports of torch, on a loaded machine

# Trains from what it is given to step 40 and saves every 10. What it loads it loads with the library, and it
# checks what it got, as training would by its loss.
TORCH = (
    "import os, torch\n"
    "start, path = 0, os.environ.get('DGXRUN_RESUME_FROM')\n"
    "if path:\n"
    "    print('loads', os.path.basename(path), flush=True)\n"
    "    state = torch.load(path)\n"
    "    start = state['step']\n"
    "    assert bool((state['w'] == start).all()), 'RuntimeError: a bad tensor'\n"
    "for step in range(start + 10, 41, 10):\n"
    "    torch.save({'step': step, 'w': torch.full((4096,), float(step))}, 'ckpt/new.tmp')\n"
    "    os.rename('ckpt/new.tmp', f'ckpt/step_{step}.pt')\n"
    "    print('saved', step, flush=True)\n"
)
DCP = (
    "import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp\n"
    "dist.init_process_group('gloo')\n"
    "start, path = 0, os.environ.get('DGXRUN_RESUME_FROM')\n"
    "if path:\n"
    "    print('loads', os.path.basename(path), flush=True)\n"
    "    state = {'step': 0, 'w': torch.zeros(4096)}\n"
    "    dcp.load(state, checkpoint_id=path)\n"
    "    start = state['step']\n"
    "    assert bool((state['w'] == start).all()), 'RuntimeError: a bad tensor'\n"
    "for step in range(start + 10, 41, 10):\n"
    "    dcp.save({'step': step, 'w': torch.full((4096,), float(step))}, checkpoint_id=f'ckpt/step_{step}')\n"
    "    print('saved', step, flush=True)\n"
    "dist.destroy_process_group()\n"
)


def data_file(workspace, name):
    path = workspace.path(f"ckpt/{name}")
    if os.path.isfile(path):
        return path
    (shard,) = [one for one in os.listdir(path) if one.endswith(".distcp")]
    return os.path.join(path, shard)


def flip_a_byte(path):
    """In its middle, as a bad disk does: times stay."""
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(times.st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("script, suffix", [(TORCH, ".pt"), (DCP, "")], ids=["torch", "dcp"])
def test_damaged_newest_ones_cost_one_failed_load(local, script, suffix):
    """40 is damaged within a tensor, which only reading it all shows; 30 is cut off; 20 is good."""
    pytest.importorskip("torch")
    workspace = local.workspace
    os.mkdir(workspace.path("ckpt"))
    program = workspace.write("train.py", script)
    launch = ["--ckpt-dir", "ckpt", "--max-restarts", "3", program]
    first = workspace.run(*launch, seconds=ATTEMPTS_S)
    assert "loads" not in first.stdout and "saved 40" in first.stdout, first.transcript()
    flip_a_byte(data_file(workspace, f"step_40{suffix}"))
    cut = data_file(workspace, f"step_30{suffix}")
    os.truncate(cut, os.path.getsize(cut) - 1)
    done = workspace.run(*launch, seconds=ATTEMPTS_S)
    loads = [line.split(" loads ")[1] for line in done.stdout.splitlines() if " loads " in line]
    assert loads == [f"step_40{suffix}", f"step_20{suffix}"], done.transcript()
    assert "saved 40" in done.stdout
    assert f"step_40{suffix} is passed over: CORRUPT" in done.stderr
    assert f"step_30{suffix} is passed over: PARTIAL" in done.stderr


# As Megatron-LM reads its tracker (megatron/training/checkpointing.py, read_metadata and load_checkpoint), and
# as it writes it: after all files, in place. Saves are copies of a file. The first attempt is killed in the
# middle of writing the tracker after its third save.
MEGATRON = (
    "import os, shutil, signal, sys\n"
    "TRACKER = 'ckpt/latest_checkpointed_iteration.txt'\n"
    "def load():\n"
    "    if not os.path.isfile(TRACKER):\n"
    "        print('WARNING: could not find the metadata file, will start from random', flush=True)\n"
    "        return 0\n"
    "    with open(TRACKER) as file:\n"
    "        text = file.read().strip()\n"
    "    try:\n"
    "        iteration = int(text)\n"
    "    except ValueError:\n"
    "        print('ERROR: Invalid metadata file. Exiting', flush=True)\n"
    "        sys.exit()\n"
    "    with open(f'ckpt/iter_{iteration:07d}/mp_rank_00/model_optim_rng.pt', 'rb') as file:\n"
    "        assert file.read() == open('model', 'rb').read(), 'RuntimeError: bad checkpoint'\n"
    "    return iteration\n"
    "start = load()\n"
    "print('starts at', start, flush=True)\n"
    "for iteration in range(start + 1, 6):\n"
    "    folder = f'ckpt/iter_{iteration:07d}/mp_rank_00'\n"
    "    os.makedirs(folder, exist_ok=True)\n"
    "    shutil.copyfile('model', f'{folder}/model_optim_rng.pt')\n"
    "    with open(TRACKER, 'w') as file:\n"
    "        if iteration == 3 and os.environ.get('DGXRUN_ATTEMPT', '1') == '0':\n"
    "            os.kill(os.getpid(), signal.SIGKILL)\n"
    "        file.write(str(iteration))\n"
    "print('trained to 5', flush=True)\n"
)
TRACKER = "ckpt/latest_checkpointed_iteration.txt"


def megatron(workspace):
    from test_checkpoints import torch_bytes

    with open(workspace.path("model"), "wb") as file:
        file.write(torch_bytes(None))
    os.mkdir(workspace.path("ckpt"))
    return workspace.write("megatron.py", MEGATRON)


def tracker_text(workspace):
    with open(workspace.path(TRACKER)) as file:
        return file.read()


def test_a_crash_that_leaves_an_empty_tracker_costs_no_step(local):
    workspace = local.workspace
    program = megatron(workspace)
    done = workspace.run("--ckpt-dir", "ckpt", "--max-restarts", "2", program)
    assert "starts at 0" in done.stdout and "starts at 3" in done.stdout, done.transcript()
    assert done.stdout.count("starts at") == 2 and "trained to 5" in done.stdout
    assert "latest_checkpointed_iteration.txt is empty" in done.stderr
    assert tracker_text(workspace) == "5"
    # What would have happened: an exit with 0, nothing trained.
    open(workspace.path(TRACKER), "w").close()
    alone = subprocess.run(
        [sys.executable, program], cwd=workspace.path("."), stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert alone.returncode == 0 and "Invalid metadata file" in alone.stdout


def test_a_tracker_that_is_gone_or_names_a_torn_one_is_no_start_at_0(local):
    workspace = local.workspace
    program = megatron(workspace)
    workspace.run("--ckpt-dir", "ckpt", "--max-restarts", "2", program)
    os.remove(workspace.path(TRACKER))
    done = workspace.run("--ckpt-dir", "ckpt", program)
    assert "starts at 5" in done.stdout, done.transcript()
    torn = workspace.path("ckpt/iter_0000005/mp_rank_00/model_optim_rng.pt")
    times = os.stat(torn)
    os.truncate(torn, times.st_size - 1)
    os.utime(torn, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = workspace.run("--ckpt-dir", "ckpt", program)
    assert "starts at 4" in done.stdout and "trained to 5" in done.stdout, done.transcript()
    assert "iter_0000005 is passed over: PARTIAL" in done.stderr


def test_a_tracker_that_cannot_be_mended_is_not_taken_for_success(local):
    workspace = local.workspace
    program = megatron(workspace)
    workspace.run("--ckpt-dir", "ckpt", "--max-restarts", "2", program)
    open(workspace.path(TRACKER), "w").close()
    # The old tracker is kept under this name, and here it cannot be.
    kept = workspace.path(TRACKER + ".bak")
    if os.path.exists(kept):
        os.remove(kept)
    os.makedirs(os.path.join(kept, "in the way"))
    done = workspace.run("--ckpt-dir", "ckpt", "--name", "stuck", program)
    assert "ERROR: Invalid metadata file" in done.stdout, done.transcript()
    assert "it could not be mended" in done.stderr
    assert "suspicious success" in done.stderr
    assert any(alarm["kind"] == "suspicious_success" for alarm in workspace.status("stuck")["alarms"])
