"""A run that lost a rank and came back from its checkpoint ends like one that did not, and like the same
script under torchrun: to the last printed digit."""

import os
import re
import signal
import subprocess
import sys

import pytest

from harness.workspace import TRAIN_GPT

TRAIN_S = 240  # three seconds of work; four torch processes start on two loaded cores
HOLD_AT = 30
FINAL = re.compile(r"done: \d+ steps, final loss (\S+)")


def final_loss(text):
    found = FINAL.search(text)
    assert found, text
    return found.group(1)


def under_torchrun(workspace):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone",
         TRAIN_GPT, "--ckpt-dir", workspace.path("torchrun")],
        env=workspace.env, cwd=workspace.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TRAIN_S, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return final_loss(done.stdout)


def undisturbed(workspace):
    done = workspace.run("-n", 2, "-g", 2, TRAIN_GPT, "--ckpt-dir", workspace.path("plain"), seconds=TRAIN_S)
    return final_loss(done.stdout)


@pytest.mark.root
def test_killed_rank_changes_nothing(net):
    workspace = net.workspace
    fifo, ckpt = workspace.path("hold"), workspace.path("ckpt")
    os.mkfifo(fifo)
    dgxrun = workspace.start(
        "-n", 2, "-g", 2, "--ckpt-dir", ckpt, "--grace", "2s", "--name", "gpt",
        TRAIN_GPT, "--ckpt-dir", ckpt, "--hold-at", HOLD_AT, "--hold-fifo", fifo,
    )
    dgxrun.wait_line(rf"^\[node1:0\] holding at step {HOLD_AT}$", TRAIN_S)
    before = workspace.ranks("gpt")
    assert [before[rank]["node"] for rank in range(4)] == ["node1", "node1", "node2", "node2"]
    os.kill(before[3]["pid"], signal.SIGKILL)
    writer = os.open(fifo, os.O_RDWR)  # the second attempt, too, opens the FIFO, and finds it open
    try:
        assert dgxrun.wait(TRAIN_S) == 0, dgxrun.transcript()
    finally:
        os.close(writer)

    assert re.search(r"resumed from \S+/step_000020\.pt at step 20", dgxrun.stdout), dgxrun.transcript()
    status = workspace.status("gpt")
    assert (status["state"], status["attempt"], status["restarts"]) == ("succeeded", 1, 1)
    assert status["checkpoint"] == os.path.join(ckpt, "step_000020.pt")
    after = workspace.ranks("gpt")
    assert [after[rank]["node"] for rank in range(4)] == ["node1", "node1", "node2", "node2"]
    assert {rank["pid"] for rank in before.values()}.isdisjoint(rank["pid"] for rank in after.values())

    loss = final_loss(dgxrun.stdout)
    assert loss == undisturbed(workspace)
    assert loss == under_torchrun(workspace)


def test_resume_argument_instead_of_variable(local):
    """Two ranks on this machine; the checkpoint comes as an argument, and the losses go on exactly."""
    workspace = local.workspace
    ckpt = workspace.path("ckpt")
    whole = workspace.run("-g", 2, TRAIN_GPT, "--steps", 12, "--save-every", 6, "--ckpt-dir", ckpt, seconds=TRAIN_S)
    os.remove(os.path.join(ckpt, "step_000012.pt"))
    again = workspace.run(
        "-g", 2, "--ckpt-dir", ckpt, "--resume-arg", "--resume {}",
        TRAIN_GPT, "--steps", 12, "--save-every", 0, seconds=TRAIN_S,
    )
    assert f"resumed from {ckpt}/step_000006.pt at step 6" in again.stdout
    assert final_loss(again.stdout) == final_loss(whole.stdout)
