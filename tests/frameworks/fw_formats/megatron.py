"""Megatron. Megatron-LM's training scripts are not on PyPI, megatron-core is: its dist_checkpointing writes
the torch_dist folders, and what Megatron-LM adds around them (the names, the tracker, the legacy layout) is
written here as its megatron/training/checkpointing.py writes it: files in place, a barrier, then the tracker
by rank 0 with open('w')."""

import logging
import os
import warnings

from fw_formats import Format, expect_step

TRACKER = "latest_checkpointed_iteration.txt"


def _write_tracker(folder, step):
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 0:
        with open(os.path.join(folder, TRACKER), "w") as file:
            file.write(str(step))
    dist.barrier()


def read_tracker(path):
    """As Megatron-LM's read_metadata: what cannot be parsed ends the program, with status 0."""
    with open(path) as file:
        text = file.read().strip()
    try:
        return int(text), False
    except ValueError:
        if text != "release":
            print(f"ERROR: Invalid metadata file {path}. Exiting", flush=True)
            raise SystemExit from None
        return 0, True


class TorchDist(Format):
    world = 2
    judged_as = "megatron-torch_dist"

    def imports(self):
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        import megatron.core.dist_checkpointing  # noqa: F401
        import torch

        # It waits for the GPU before it copies; there is none here.
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.current_device = lambda: torch.device("cpu")

    def sharded(self, step, rank, world):
        import torch
        from megatron.core.dist_checkpointing import ShardedTensor

        def one(name, rows):
            return ShardedTensor.from_rank_offsets(
                name, torch.full((rows, self.width), float(step)), (0, rank, world)
            )

        return {
            "model": {"weight": one("model.weight", self.width), "bias": one("model.bias", 2)},
            "optimizer": {"exp_avg": one("optimizer.exp_avg", self.width)},
            "iteration": step,
            "args": {"world_size": world},
        }

    def train(self, folder, every, last, keep=None):
        import torch.distributed as dist
        from megatron.core import dist_checkpointing

        for step in range(every, last + 1, every):
            path = os.path.join(folder, f"iter_{step:07d}")
            os.makedirs(path, exist_ok=True)
            dist.barrier()
            dist_checkpointing.save(self.sharded(step, dist.get_rank(), dist.get_world_size()), path)
            _write_tracker(folder, step)

    def load(self, path):
        import tempfile

        import torch
        import torch.distributed as dist
        from megatron.core import dist_checkpointing

        meeting_point = tempfile.mktemp(prefix="ranks-")
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=0, world_size=1)
        template = self.sharded(-1, 0, 1)
        # One rank loads what two wrote: its part is the whole.
        template["model"]["weight"] = self._whole("model.weight", self.width)
        template["model"]["bias"] = self._whole("model.bias", 2)
        template["optimizer"]["exp_avg"] = self._whole("optimizer.exp_avg", self.width)
        state = dist_checkpointing.load(template, path)
        step = state["iteration"]
        expect_step(step, [*state["model"].values(), *state["optimizer"].values()])
        if not isinstance(state["model"]["weight"], torch.Tensor):
            raise ValueError("no tensor was loaded")
        return step, state

    def _whole(self, name, rows):
        import torch
        from megatron.core.dist_checkpointing import ShardedTensor

        return ShardedTensor.from_rank_offsets(name, torch.full((rows * 2, self.width), -1.0))


class Legacy(Format):
    """mp_rank_TT/model_optim_rng.pt of two tensor-parallel ranks, by torch.save."""

    world = 2
    judged_as = "megatron"

    def imports(self):
        import torch.distributed  # noqa: F401

    def train(self, folder, every, last, keep=None):
        import torch
        import torch.distributed as dist

        for step in range(every, last + 1, every):
            path = os.path.join(folder, f"iter_{step:07d}", f"mp_rank_{dist.get_rank():02d}")
            os.makedirs(path, exist_ok=True)
            weights = {"weight": torch.full((self.width, self.width), float(step))}
            state = {
                "iteration": step,
                "checkpoint_version": 3.0,
                "args": {"tensor_model_parallel_size": dist.get_world_size(), "pipeline_model_parallel_size": 1},
                "model": weights,
                "optimizer": {"exp_avg": weights["weight"]},
                "rng_state": [{"torch_rng_state": torch.get_rng_state()}],
            }
            torch.save(state, os.path.join(path, "model_optim_rng.pt"))
            _write_tracker(folder, step)

    def load(self, path):
        import torch

        loaded = []
        for rank in range(self.world):
            state = torch.load(os.path.join(path, f"mp_rank_{rank:02d}", "model_optim_rng.pt"), weights_only=False)
            expect_step(state["iteration"], [*state["model"].values(), *state["optimizer"].values()])
            loaded.append(state)
        if loaded[0]["iteration"] != loaded[1]["iteration"]:
            raise ValueError("loaded a mix of two iterations")
        return loaded[0]["iteration"], {"ranks": loaded}
