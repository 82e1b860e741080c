"""Checkpoint folders as crashes leave them: what an attempt is given, what is put in order, what is said.

Files are small and made here; tests/frameworks writes real ones with each framework.
"""

import json
import os
import struct

import pytest

from harness.waiting import wait_until

ALL_MODES = pytest.mark.parametrize("mode", ["local", "dev", "net"], indirect=True)
PYTHON_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launcher", "python")
SEEN_S = 30  # until a look at the folder, a heartbeat and a status have told of it, on a loaded machine
SHOW = (
    "import os, sys\n"
    "print('resume', os.path.basename(os.environ.get('DGXRUN_RESUME_FROM', 'none')), "
    "os.environ.get('DGXRUN_RESUME_STEP'), sys.argv[1:])\n"
)


def safetensors(values=4):
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\1" * (4 * values)


def save(workspace, name, data=None):
    path = workspace.path(f"ckpt/{name}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(safetensors() if data is None else data)
    return path


def torch_bytes(value):
    """As torch.save writes it; large enough that a byte in its middle is a tensor's."""
    import io

    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(value if value is not None else {"w": torch.ones(4096)}, file)
    return file.getvalue()


def names(workspace):
    return sorted(os.listdir(workspace.path("ckpt")))


def resumed(done):
    """DGXRUN_RESUME_STEP of each attempt of one rank."""
    return [line.split()[3] for line in done.stdout.splitlines() if " resume step_" in line]


def alarms(workspace, *args):
    return [alarm["text"] for alarm in workspace.status(*args)["alarms"]]


@ALL_MODES
def test_a_torn_newest_one_is_passed_over(mode):
    workspace = mode.workspace
    save(workspace, "step_10.safetensors")
    save(workspace, "step_20.safetensors", safetensors()[:-1])
    done = workspace.run(
        *mode.launch_args(2), "--ckpt-dir", "ckpt", "--resume-arg", "--from {} --step {step}", "--name", "torn",
        workspace.write("show.py", SHOW),
    )
    line = f"resume step_10.safetensors 10 {['--from', workspace.path('ckpt/step_10.safetensors'), '--step', '10']}"
    assert done.stdout.count(line) == 2, done.transcript()
    assert "step_20.safetensors is passed over: PARTIAL" in done.stderr
    assert any("step_20.safetensors is passed over" in text for text in alarms(workspace, "torn"))
    assert "passed over" in workspace.run("why", "torn").stdout
    assert names(workspace) == ["step_10.safetensors", "step_20.safetensors"], "nothing picks this format by its name"


def trainer(workspace, step):
    for name, data in (
        ("model.safetensors", safetensors()),
        ("config.json", b"{}"),
        ("optimizer.pt", torch_bytes(None)),
        ("scheduler.pt", torch_bytes({"last_epoch": step})),
        ("training_args.bin", torch_bytes({"seed": 1})),
        ("rng_state.pth", torch_bytes({"python": 1})),
        ("trainer_state.json", json.dumps({"global_step": step, "epoch": 1.0, "log_history": []}).encode()),
    ):
        save(workspace, f"checkpoint-{step}/{name}", data)


def test_a_folder_that_trainer_would_pick_is_moved_aside(local):
    workspace = local.workspace
    trainer(workspace, 10)
    trainer(workspace, 20)
    os.remove(workspace.path("ckpt/checkpoint-20/trainer_state.json"))
    program = workspace.write("show.py", SHOW)
    for _ in range(2):  # the second time there is nothing left to do
        done = workspace.run("--ckpt-dir", "ckpt", "--name", "aside", program)
        assert "resume checkpoint-10 10 []" in done.stdout, done.transcript()
        assert names(workspace) == ["checkpoint-10", "checkpoint-20.dgxrun-quarantine"]
    assert alarms(workspace, "aside") == []


def test_an_empty_megatron_tracker_is_repaired(local):
    """Megatron itself would print a line and exit with 0: taken for success, with nothing trained."""
    workspace = local.workspace
    for iteration in (100, 200):
        save(workspace, f"iter_{iteration:07d}/mp_rank_00/model_optim_rng.pt", torch_bytes(None))
    save(workspace, "latest_checkpointed_iteration.txt", b"")
    program = workspace.write(
        "megatron.py",
        "import sys\n"
        "text = open('ckpt/latest_checkpointed_iteration.txt').read().strip()\n"
        "if not text.isdigit():\n"
        "    print('ERROR: Invalid metadata file'); sys.exit()\n"
        "print('iteration', int(text))\n",
    )
    done = workspace.run("--ckpt-dir", "ckpt", program)
    assert "iteration 200" in done.stdout, done.transcript()
    assert "latest_checkpointed_iteration.txt is empty" in done.stderr
    assert os.path.getsize(workspace.path("ckpt/latest_checkpointed_iteration.txt.bak")) == 0


def test_what_a_restart_takes_is_measured(local):
    workspace = local.workspace
    save(workspace, "step_10.safetensors")
    program = workspace.write(
        "steps.py",
        "import os, signal, sys\n"
        f"sys.path.insert(0, {PYTHON_FOLDER!r})\n"
        "import dgxrun\n"
        "dgxrun.step(11)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sys.exit(1)\n"
        "dgxrun.step(15)\n"
        "signal.pause()\n",
    )
    running = workspace.start("--ckpt-dir", "ckpt", "--max-restarts", "1", "--grace", "1s", "--name", "cost", program)
    told = lambda: (workspace.status("cost")["progress"] or {}).get("restart_s")  # noqa: E731
    wait_until(told, SEEN_S, running.transcript)
    assert 0 < told() < SEEN_S
    for command in ("status", "why"):
        text = workspace.run(command, "cost").stdout
        assert "newest complete checkpoint" in text and " old, 5 steps ago" in text, text
        assert "a failure now costs 5 steps (" in text and "and a restart of " in text, text
    workspace.run("stop", "cost")
    running.wait(SEEN_S)


def test_two_failures_alike_poison_what_was_loaded(local):
    workspace = local.workspace
    for step in (10, 20):
        save(workspace, f"step_{step}.safetensors")
    program = workspace.write(
        "load.py",
        SHOW + "if os.environ['DGXRUN_RESUME_STEP'] == '20':\n"
        "    sys.exit(f'RuntimeError: bad tensor {os.getpid()}')\n",
    )
    done = workspace.run("--ckpt-dir", "ckpt", "--max-restarts", "3", "--name", "poison", program)
    assert resumed(done) == ["20", "20", "10"]
    assert names(workspace) == ["step_10.safetensors", "step_20.safetensors.dgxrun-quarantine"]
    assert any("failed in the same way soon after loading it" in text for text in alarms(workspace, "poison"))


def test_a_damaged_middle_costs_one_failed_load(local):
    """Structure cannot show it; on a restart the newest one is read in full."""
    workspace = local.workspace
    good = torch_bytes(None)
    save(workspace, "step_10.pt", good)
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 0xFF
    save(workspace, "step_20.pt", bytes(bad))
    program = workspace.write("load.py", SHOW + "sys.exit(os.environ['DGXRUN_RESUME_STEP'] == '20')\n")
    done = workspace.run("--ckpt-dir", "ckpt", "--max-restarts", "1", program)
    assert resumed(done) == ["20", "10"]
    assert "step_20.pt is passed over: CORRUPT" in done.stderr, done.transcript()


STEPS = (
    "import os, sys, time\n"
    f"sys.path.insert(0, {PYTHON_FOLDER!r})\n"
    "import dgxrun\n"
    "first, last = int(sys.argv[1]), int(sys.argv[2])\n"
    "for step in range(first, last + 1):\n"
    "    dgxrun.step(step)\n"
    "print('at step', last, flush=True)\n"
    "if len(sys.argv) > 3:\n"
    "    import signal; signal.pause()\n"
)


@pytest.mark.parametrize("mode", ["local", "net"], indirect=True)
def test_a_silent_reset_stops_the_job_if_asked_for(mode):
    workspace = mode.workspace
    save(workspace, "step_1000.safetensors")
    program = workspace.write("steps.py", STEPS)
    launch = [*mode.launch_args(2), "--ckpt-dir", "ckpt", "--grace", "1s", "--name", "reset"]
    done = workspace.run(*launch, "--on-reset", "stop", program, "0", "5", "wait", expect=143)
    assert "silent reset: the attempt was given" in done.stderr, done.transcript()
    running = workspace.start(*launch, program, "0", "5", "wait")
    wait_until(lambda: "silent reset" in running.stderr, SEEN_S, running.transcript)
    status = workspace.status("reset")
    assert status["state"] == "running"
    assert (status["progress"]["step"], status["progress"]["first_step"]) == (5, 0)
    assert status["progress"]["newest_checkpoint_step"] == 1000
    assert "a failure now costs" in workspace.run("status", "reset").stdout
    workspace.run("stop", "reset")
    running.wait(SEEN_S)


def test_an_exit_far_too_early_is_suspicious(local):
    workspace = local.workspace
    program = workspace.write("steps.py", STEPS)
    done = workspace.run("--last-step", "1000", program, "0", "10")
    assert "suspicious success: all ranks exited with 0 at step 10, training ends at step 1000" in done.stderr
    done = workspace.run("--last-step", "1000", program, "990", "1000")
    assert "suspicious" not in done.stderr


def test_old_ones_go_while_training(local):
    workspace = local.workspace
    os.makedirs(workspace.path("ckpt"))
    with open(workspace.path("data"), "wb") as file:
        file.write(safetensors())
    program = workspace.write(
        "train.py",
        "import os, shutil, time\n"
        "end = time.monotonic() + 60\n"
        "for step in range(1, 6):\n"
        "    shutil.copy('data', f'ckpt/.new'); os.rename('ckpt/.new', f'ckpt/step_{step}.safetensors')\n"
        "left = lambda: sorted(os.listdir('ckpt'))\n"
        "while len(left()) > 3 and time.monotonic() < end:\n"
        "    time.sleep(0.1)\n"
        "print(left())\n",
    )
    done = workspace.run("--ckpt-dir", "ckpt", "--ckpt-keep", "2,3", program)
    assert str([f"step_{n}.safetensors" for n in (3, 4, 5)]) in done.stdout, done.transcript()


@pytest.mark.root
def test_what_is_odd_while_it_trains_is_said(workspace, box):
    """Lightning's TMPDIR elsewhere; a disk that the next save will not fit on; saves that stop coming."""
    torch = pytest.importorskip("torch")
    box.small_disk(workspace.path("ckpt"))
    box.small_disk(workspace.path("tmp"))
    for step in (10, 20, 30, 40):
        state = {"w": torch.ones(13000)}
        saved = {"global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": state, "optimizer_states": []}
        torch.save(saved, workspace.path(f"epoch=0-step={step}.ckpt"))
    program = workspace.write(
        "train.py",
        "import os, shutil, signal, time\n"
        "for step in (10, 20, 30, 40):\n"
        "    name = f'epoch=0-step={step}.ckpt'\n"
        "    shutil.copy(name, 'ckpt/.new'); os.rename('ckpt/.new', f'ckpt/{name}')\n"
        "    time.sleep(1)\n"
        "signal.pause()\n",
    )
    running = workspace.start(
        "--ckpt-dir", "ckpt", "--grace", "1s", "--name", "odd", program, env={"TMPDIR": workspace.path("tmp")}
    )

    def said(*words):
        return any(all(word in text for word in words) for text in alarms(workspace, "odd"))

    wait_until(lambda: said("TMPDIR is on another file system than"), SEEN_S, running.transcript)
    wait_until(lambda: said("left and a checkpoint takes", "the next save", "will not fit"), SEEN_S, running.transcript)
    silent = lambda: said("no new complete checkpoint for", "usually there is one every")  # noqa: E731
    wait_until(silent, 2 * SEEN_S, running.transcript)
    assert workspace.status("odd")["state"] == "running", "an alarm changes neither state nor exit code"
    assert workspace.path("tmp") not in str(alarms(workspace, "odd")), "values of the environment are nobody's"
    workspace.run("stop", "odd")
    running.wait(SEEN_S)


def test_ls_verify_pin_prune(local):
    workspace = local.workspace
    for step in (100, 200, 300, 400):
        save(workspace, f"step_{step}.safetensors")
    assert workspace.run("ckpt", "verify", "ckpt").returncode == 0
    torn = save(workspace, "step_500.safetensors", safetensors()[:-1])
    assert workspace.json("ckpt", "ls", "ckpt")["checkpoints"][0]["verdict"] == "WRITING"
    os.utime(torn, (1_600_000_000, 1_600_000_000))
    listed = workspace.json("ckpt", "ls", "ckpt")["checkpoints"]
    assert [one["step"] for one in listed] == [500, 400, 300, 200, 100]
    assert [one["verdict"] for one in listed] == ["PARTIAL"] + 4 * ["COMPLETE"]
    assert listed[0]["reason"] and listed[1]["format"] == "safetensors" and listed[1]["bytes"] == len(safetensors())
    table = workspace.run("ckpt", "verify", "ckpt", expect=1).stdout
    assert "PARTIAL" in table and "step_400.safetensors" in table
    workspace.run("ckpt", "verify", "ckpt/step_400.safetensors")
    workspace.run("ckpt", "verify", "ckpt/step_500.safetensors", expect=1)
    workspace.run("ckpt", "pin", "ckpt", "step_100.safetensors")
    workspace.run("ckpt", "pin", "ckpt", "no-such", expect=64)
    prune = ["ckpt", "prune", "ckpt", "--keep-last", "1", "--keep-every", "300"]
    assert "would remove" in workspace.run(*prune, "--dry-run").stdout
    assert len(names(workspace)) == 6
    workspace.run(*prune)
    assert names(workspace) == [
        ".dgxrun-pins", *(f"step_{step}.safetensors" for step in (100, 300, 400, 500))
    ]
    workspace.run("ckpt", "pin", "ckpt", "step_100.safetensors", "--remove")
    workspace.run("ckpt", "prune", "ckpt", "--keep-last", "1")
    assert names(workspace) == [".dgxrun-pins", "step_400.safetensors", "step_500.safetensors"]
    assert workspace.run("ckpt", "ls", "nowhere", expect=78).stderr == (
        "dgxrun: nowhere: No such file or directory\n"
    )
    os.symlink("ckpt", workspace.path("link"))  # the folder may be reached through links
    assert len(workspace.json("ckpt", "ls", "link/")["checkpoints"]) == 2
    os.mkdir(workspace.path("empty"))
    assert workspace.run("ckpt", "ls", "empty").stdout == "no checkpoints\n"
    workspace.run("ckpt", "verify", "empty", expect=1)
    workspace.run("ckpt", "prune", "ckpt", expect=64)


DCP = (
    "import os, sys\n"
    "import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp\n"
    "dist.init_process_group('gloo')\n"
    "state = {f'w{dist.get_rank()}': torch.full((64,), float(dist.get_rank()))}\n"
    "print('resume', os.path.basename(os.environ.get('DGXRUN_RESUME_FROM', 'none')))\n"
    "dcp.save(state, checkpoint_id=f'ckpt/{sys.argv[1]}')\n"
    "dist.barrier()\n"
    "dist.destroy_process_group()\n"
)


def test_folders_that_nodes_do_not_share(net):
    """Only the first node has the metadata, and only the second one its shard: together they are complete."""
    pytest.importorskip("torch.distributed.checkpoint")
    workspace = net.workspace
    os.mkdir(workspace.path("ckpt"))
    for node, host in net.network.hosts.items():
        own = workspace.folder(f"disk-{node}")
        host_run(host, "mount", "--bind", own, workspace.path("ckpt"))
    program = workspace.write("dcp.py", DCP)
    launch = [*net.launch_args(2), "--ckpt-dir", "ckpt", program]
    workspace.run(*launch, "step-1")
    disks = [os.path.join(workspace.root, f"disk-{node}") for node in net.node_names]
    assert os.path.exists(f"{disks[0]}/step-1/.metadata") and not os.path.exists(f"{disks[1]}/step-1/.metadata")
    done = workspace.run(*launch, "step-2")
    assert done.stdout.count("resume step-1\n") == 2, done.transcript()
    # The second node's disk is replaced: no node has the shard of the newest one any more.
    (shard,) = [name for name in os.listdir(f"{disks[1]}/step-2") if name.endswith(".distcp")]
    os.remove(f"{disks[1]}/step-2/{shard}")
    done = workspace.run(*launch, "step-3")
    assert done.stdout.count("resume step-1\n") == 2, done.transcript()
    assert "step-2 is passed over: PARTIAL" in done.stderr


def host_run(host, *command):
    from harness.workspace import check_output

    check_output(host.argv(*command))


def test_old_ones_go_on_every_disk_and_a_pin_holds_on_all(net):
    workspace = net.workspace
    os.mkdir(workspace.path("ckpt"))
    disks = {node: workspace.folder(f"disk-{node}") for node in net.network.hosts}
    for node, host in net.network.hosts.items():
        host_run(host, "mount", "--bind", disks[node], workspace.path("ckpt"))
    with open(os.path.join(disks["node2"], ".dgxrun-pins"), "w", encoding="utf-8") as file:
        file.write("step_1.safetensors\n")
    with open(workspace.path("data"), "wb") as file:
        file.write(safetensors())
    program = workspace.write(
        "train.py",
        "import os, shutil, signal, time\n"
        "for step in range(1, 6):\n"
        "    shutil.copy('data', 'ckpt/.new'); os.rename('ckpt/.new', f'ckpt/step_{step}.safetensors')\n"
        "    time.sleep(0.01 * (1 + int(os.environ['RANK'])))\n"  # no two disks alike
        "signal.pause()\n",
    )
    running = workspace.start(
        *net.launch_args(2), "--ckpt-dir", "ckpt", "--ckpt-keep", "2", "--grace", "1s", "--name", "keep", program
    )
    kept = [f"step_{n}.safetensors" for n in (1, 4, 5)]

    def left(node):
        return sorted(name for name in os.listdir(disks[node]) if not name.startswith("."))

    wait_until(lambda: all(left(node) == kept for node in net.node_names), SEEN_S, lambda: str([left(n) for n in disks]))
    workspace.run("stop", "keep")
    running.wait(SEEN_S)
    assert alarms(workspace, "keep") == []


def deepspeed(workspace, step, world, root="ckpt"):
    torch = pytest.importorskip("torch")
    folder = workspace.path(f"{root}/global_step{step}")
    os.makedirs(folder)
    said = {"dp_world_size": world, "mp_world_size": 1, "global_steps": step, "module": {"w": torch.ones(8)}}
    torch.save(said, f"{folder}/mp_rank_00_model_states.pt")
    for rank in range(world):
        torch.save({"optimizer_state_dict": {"m": torch.ones(8)}}, f"{folder}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    workspace.write(f"{root}/latest", f"global_step{step}")


def test_elastic_waits_for_a_node_without_which_nothing_can_be_loaded(net):
    """The placement of the smaller attempt knows of no checkpoint; its nodes find one of ZeRO."""
    workspace = net.workspace
    os.mkdir(workspace.path("ckpt"))
    deepspeed(workspace, 20, 2, "made")  # torch may take longer to import than a node to be fenced
    program = workspace.write(
        "elastic.py",
        SHOW + "import signal\n"
        "print('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "if 'DGXRUN_RESUME_FROM' not in os.environ:\n"
        "    signal.pause()\n",
    )
    running = workspace.start(
        *net.launch_args(2), "--ckpt-dir", "ckpt", "--elastic", "1", "--max-restarts", "1", "--grace", "1s",
        "--name", "zero", program,
    )
    wait_until(lambda: running.stdout.count("world 2") == 2, SEEN_S, running.transcript)
    net.daemon_of["node2"].kill()
    wait_until(lambda: workspace.status("zero")["state"] == "stopping", SEEN_S, running.transcript)
    for name in ("global_step20", "latest"):
        os.rename(workspace.path(f"made/{name}"), workspace.path(f"ckpt/{name}"))
    waits = lambda: "fewer cannot load" in (workspace.status("zero")["waiting_for"] or "")  # noqa: E731
    wait_until(waits, net.fenced_s + SEEN_S, running.transcript)
    status = workspace.status("zero")
    assert (status["state"], status["restarts"]) == ("queued", 1)
    assert "2 nodes (1 now)" in status["waiting_for"] and "global_step20" in status["waiting_for"]
    net.start_agent("node2")
    assert running.wait(2 * SEEN_S) == 0, running.transcript()
    assert "world 1" not in running.stdout
    assert running.stdout.count("resume global_step20 20 []") == 2, running.transcript()


def test_elastic_goes_on_with_the_node_that_is_left(net):
    workspace = net.workspace
    save(workspace, "step_10.safetensors")
    program = workspace.write(
        "elastic.py",
        "import os, signal\n"
        "print('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "if os.environ['WORLD_SIZE'] == '2':\n"
        "    signal.pause()\n",
    )
    running = workspace.start(
        *net.launch_args(2), "--ckpt-dir", "ckpt", "--elastic", "1", "--grace", "1s", "--name", "elastic", program
    )
    wait_until(lambda: running.stdout.count("world 2") == 2, SEEN_S, running.transcript)
    net.daemon_of["node2"].kill()
    assert running.wait(net.fenced_s + SEEN_S) == 0, running.transcript()
    assert "world 1" in running.stdout
    net.start_agent("node2")
