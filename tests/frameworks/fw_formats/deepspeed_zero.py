"""DeepSpeed: engine.save_checkpoint of ZeRO stages 0 to 3, two ranks, its CPU accelerator."""

import logging
import os

from fw_formats import Format, expect_step


class _Zero(Format):
    world = 2
    stage = 0
    judged_as = "deepspeed"
    may_be_missing = {
        "zero_to_fp32.py": "a tool that lies beside the tags; no load reads it",
    }

    def imports(self):
        logging.disable(logging.WARNING)
        import deepspeed
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  (imports the compiler: seconds)
        import deepspeed.runtime.zero.stage3  # noqa: F401
        import deepspeed.runtime.zero.stage_1_and_2  # noqa: F401
        import deepspeed.utils.zero_to_fp32  # noqa: F401

        # Its shared-memory collectives would be compiled at the first use, which takes a minute; without them
        # it takes torch's gloo.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def engine(self):
        import deepspeed
        import torch

        # The optimizer is torch's: DeepSpeed's own would be compiled at the first use.
        model = torch.nn.Sequential(torch.nn.Linear(self.width, self.width), torch.nn.Linear(self.width, self.width))
        engine, _, _, _ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters()),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": self.stage},
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": 1 << 30,
            },
            dist_init_required=False,
        )
        return engine

    def train(self, folder, every, last, keep=None):
        import torch

        engine = self.engine()
        for step in range(1, last + 1):
            engine.backward(engine(torch.ones(1, self.width)).sum())
            engine.step()
            if step % every == 0:
                engine.save_checkpoint(folder, client_state={"step": step})

    def load(self, path):
        """By the tag's converter, which reads every rank's files; DeepSpeed's own load needs both ranks."""
        import torch
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        folder, tag = os.path.split(path)
        step = int(tag.removeprefix("global_step"))
        if self.stage == 0:
            state = torch.load(os.path.join(path, "mp_rank_00_model_states.pt"), weights_only=False)["module"]
        else:
            state = get_fp32_state_dict_from_zero_checkpoint(folder, tag)
        return step, dict(state)


class Zero0(_Zero):
    stage = 0


class Zero1(_Zero):
    stage = 1


class Zero2(_Zero):
    stage = 2


class Zero3(_Zero):
    stage = 3
