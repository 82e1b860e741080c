"""accelerate: save_state() with automatic names, two ranks of DDP."""

import os

from fw_formats import Format, expect_step


class SaveState(Format):
    world = 2
    judged_as = "accelerate"
    subfolder = "checkpoints"
    may_have_holes = {
        "model.safetensors": "the format has no checksum: zeros in the data are values like others",
    }

    def is_step(self, name, step):
        # It counts saves, not steps.
        return name == "checkpoint_0"

    def imports(self):
        import accelerate  # noqa: F401

    def prepared(self, folder, keep=None):
        import torch
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        accelerator = Accelerator(
            cpu=True,
            project_config=ProjectConfiguration(
                project_dir=folder, automatic_checkpoint_naming=True, total_limit=keep
            ),
        )
        model = torch.nn.Sequential(torch.nn.Linear(self.width, self.width), torch.nn.Linear(self.width, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
        return accelerator, *accelerator.prepare(model, optimizer, scheduler)

    def train(self, folder, every, last, keep=None):
        import torch

        accelerator, model, optimizer, scheduler = self.prepared(folder, keep)
        for step in range(1, last + 1):
            optimizer.zero_grad()
            accelerator.backward(model(torch.ones(1, self.width)).sum())
            optimizer.step()
            scheduler.step()
            if step % every == 0:
                with torch.no_grad():
                    for one in model.parameters():
                        one.fill_(float(step))
                # Named by the number of the save: checkpoints/checkpoint_0, _1, ...
                accelerator.save_state()

    def mix_is_untold(self, case):
        # Its ranks write in any order, and of its files only the random states know a step: their own.
        return "accelerate writes no file last and puts no name of the save into its files"

    def load(self, path):
        accelerator, model, optimizer, _ = self.prepared(os.path.dirname(path) + ".loads")
        accelerator.load_state(path)
        values = [one.detach() for one in model.parameters()]
        step = int(values[0].flatten()[0])
        expect_step(step, values)
        state = optimizer.optimizer.state_dict()
        expect_step(step, [one["step"] for one in state["state"].values()])
        return step, {"model": model.state_dict(), "optimizer": state}
