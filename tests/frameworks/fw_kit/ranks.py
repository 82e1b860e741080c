"""Ranks of a small training, forked from a process that has imported the framework already.

Imports of these frameworks take five to twenty seconds; a fork takes milliseconds. A forked rank must find
no threads and no process group, so the parent imports and does nothing else.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import traceback

PR_SET_PDEATHSIG = 1

# Every rank computes with one thread: the parent's thread pools do not come along over a fork.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "ACCELERATE_USE_CPU": "true",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
}


def _free_port():
    """Ranks meet in a file; but some frameworks make a group of one by themselves, at MASTER_PORT."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def set_environment():
    """Before the first import of torch."""
    os.environ.update(ENVIRONMENT)
    # What a launcher around us may have left.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"):
        os.environ.pop(name, None)


def start(function, *args, log=None):
    """Forks one process that runs function(*args) and exits; returns its pid. `log` takes its output."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # Nothing outlives the test, also when the test is killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if log is not None:
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
        function(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # megatron-core keeps a process for writing, which an exit without Python's clean-up would leave.
        for helper in multiprocessing.active_children():
            helper.kill()
            helper.join()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _as_rank(rank, world, meeting_point, function, args):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=world)
    function(*args)
    if world > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


class Gang:
    """`world` ranks that run function(*args) with RANK and so on set, and a gloo group if there are more
    than one. Their output goes to `log`."""

    def __init__(self, world, function, *args, log):
        self.log = log
        os.environ["MASTER_PORT"] = str(_free_port())
        fd, self.meeting_point = tempfile.mkstemp(prefix="ranks-")
        os.close(fd)
        os.unlink(self.meeting_point)
        self.pids = [
            start(_as_rank, rank, world, self.meeting_point, function, args, log=log) for rank in range(world)
        ]

    def kill(self):
        """All at once, as the loss of a node or the out-of-memory killer of a cgroup does it."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        return self.wait()

    def wait(self):
        """Exit statuses, rank by rank, as os.waitstatus_to_exitcode gives them: a signal is negative. When
        one fails the others are killed: they may wait for it in a collective for half an hour."""
        statuses = {}
        while len(statuses) < len(self.pids):
            pid, status = os.wait()
            if pid not in self.pids:
                continue
            statuses[pid] = os.waitstatus_to_exitcode(status)
            if statuses[pid] != 0:
                for other in self.pids:
                    if other not in statuses:
                        os.kill(other, signal.SIGKILL)
        if os.path.exists(self.meeting_point):
            os.unlink(self.meeting_point)
        return [statuses[pid] for pid in self.pids]


def run(world, function, *args, log):
    """Runs the ranks to their end. A rank that fails is an error with the end of the log."""
    statuses = Gang(world, function, *args, log=log).wait()
    if any(statuses):
        with open(log, errors="replace") as file:
            raise RuntimeError(f"ranks ended with {statuses}:\n{file.read()[-6000:]}")


def _rehearse(writer, folder, modules):
    writer.train(folder, 1, 2, None)
    if os.environ["RANK"] == "0":
        with open(modules, "w") as file:
            file.write("\n".join(sys.modules))


def warm_up(writer):
    """Imports here what a first save imports late, in the ranks: else every forked rank would, for seconds."""
    writer.imports()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        modules = os.path.join(folder, "modules")
        run(writer.world, _rehearse, writer, os.path.join(folder, "saves"), modules, log=os.path.join(folder, "log"))
        with open(modules) as file:
            names = file.read().split("\n")
    for name in names:
        if name not in sys.modules and name != "__mp_main__":
            try:
                importlib.import_module(name)
            except Exception:  # one that exists only where it was made
                continue
