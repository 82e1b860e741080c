"""torch.distributed.checkpoint: save() and async_save() of an FSDP-sharded model on two ranks, into step-N
folders as torchtitan names them."""

import os

from fw_formats import Format, expect_step, keep_newest


class Dcp(Format):
    world = 2
    judged_as = "dcp"

    def imports(self):
        import torch.distributed.checkpoint  # noqa: F401
        import torch.distributed.fsdp  # noqa: F401
        from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: F401

    def model(self):
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Sequential(torch.nn.Linear(self.width, self.width), torch.nn.Linear(self.width, self.width))
        if dist.is_initialized():
            fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
        return model, torch.optim.AdamW(model.parameters())

    def state(self, model, optimizer, step):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "step": step, "loader": {"position": step}}

    def save(self, state, path):
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=path)

    def folder_of(self, folder, step):
        return os.path.join(folder, f"step-{step}")

    def train(self, folder, every, last, keep=None):
        import torch

        model, optimizer = self.model()
        written = []
        for step in range(1, last + 1):
            optimizer.zero_grad()
            model(torch.ones(1, self.width)).sum().backward()
            optimizer.step()
            if step % every:
                continue
            with torch.no_grad():
                for one in model.parameters():
                    one.fill_(float(step))
            path = self.folder_of(folder, step)
            self.save(self.state(model, optimizer, step), path)
            written.append(os.path.basename(path))
            if os.environ["RANK"] == "0" and not self.overwrites:
                keep_newest(folder, keep, written)

    def load(self, path):
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        model, optimizer = self.model()
        # So that the optimizer has its state's shape to load into.
        model(torch.ones(1, self.width)).sum().backward()
        optimizer.step()
        state = self.state(model, optimizer, -1)
        dcp.load(state, checkpoint_id=path, no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
        expect_step(step, [one.detach() for one in model.parameters()])
        expect_step(step, [one["step"] for one in optimizer.state_dict()["state"].values()])
        if state["loader"]["position"] != step:
            raise ValueError(f"loaded a mix: position {state['loader']['position']} with step {step}")
        return step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


class DcpAsync(Dcp):
    """async_save: written by a thread while the training goes on; the next save waits for it. The thread has
    a process group of its own, else its collectives and the training's would mix."""

    future = None
    group = None

    def save(self, state, path):
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        if self.future is not None:
            self.future.result()
        if self.group is None:
            self.group = dist.new_group(backend="gloo")
        self.future = dcp.async_save(state, checkpoint_id=path, process_group=self.group)

    def train(self, folder, every, last, keep=None):
        super().train(folder, every, last, keep)
        self.future.result()


class DcpOverwrite(Dcp):
    """Saves over the same folder again and again."""

    overwrites = True

    def folder_of(self, folder, step):
        return os.path.join(folder, "last")
