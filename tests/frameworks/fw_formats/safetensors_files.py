"""safetensors: one file per step (safetensors.torch), and shards with an index (huggingface_hub)."""

import os

from fw_formats import Format, expect_step, keep_newest


class _Safetensors(Format):
    judged_as = "safetensors"
    may_have_holes = {
        "*.safetensors": "the format has no checksum: zeros in the data are values like others",
    }

    def tensors(self, step):
        import torch

        return {f"layer{i}.weight": torch.full((self.width, self.width), float(step)) for i in range(6)}

    def train(self, folder, every, last, keep=None):
        written = []
        for step in range(every, last + 1, every):
            path = os.path.join(folder, f"step-{step}")
            os.makedirs(path, exist_ok=True)
            self.save(self.tensors(step), path)
            written.append(f"step-{step}")
            keep_newest(folder, keep, written)

    def checked(self, path, tensors):
        step = int(path.rpartition("-")[2])
        if sorted(tensors) != sorted(self.tensors(step)):
            raise ValueError(f"tensors are missing: {sorted(tensors)}")
        expect_step(step, tensors.values())
        return step, tensors


class Single(_Safetensors):
    def imports(self):
        import safetensors.torch  # noqa: F401

    def save(self, tensors, path):
        from safetensors.torch import save_file

        save_file(tensors, os.path.join(path, "model.safetensors"))

    def load(self, path):
        from safetensors.torch import load_file

        return self.checked(path, load_file(os.path.join(path, "model.safetensors")))


class Shards(_Safetensors):
    """Two tensors a shard, so three shards and model.safetensors.index.json, which is written last."""

    def imports(self):
        import huggingface_hub  # noqa: F401
        import safetensors.torch  # noqa: F401

    def save(self, tensors, path):
        from huggingface_hub import save_torch_state_dict

        save_torch_state_dict(tensors, path, max_shard_size=self.width * self.width * 4 * 2)

    def load(self, path):
        import torch
        from huggingface_hub import load_torch_model

        model = torch.nn.Module()
        for name, tensor in self.tensors(0).items():
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(tensor)
            model.add_module(name.partition(".")[0], layer)
        load_torch_model(model, path, strict=True)
        return self.checked(path, {name: one.detach() for name, one in model.state_dict().items()})
