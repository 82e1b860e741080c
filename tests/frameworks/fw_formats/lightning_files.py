"""Lightning: .ckpt files of ModelCheckpoint, and the folder of a model that is sharded over two ranks."""

import logging
import os
import warnings

from fw_formats import Format, expect_step


def _module(width):
    import torch
    from lightning.pytorch import LightningModule

    class Small(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(width, width)

        def configure_model(self):
            if self.device_mesh is not None:
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])
                fully_shard(self, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, index):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    return Small()


def _stamp_step():
    import torch
    from lightning.pytorch import Callback

    class StampStep(Callback):
        """Runs before ModelCheckpoint, which Lightning keeps last."""

        def on_train_batch_end(self, trainer, module, *_):
            with torch.no_grad():
                for one in module.parameters():
                    one.fill_(float(trainer.global_step))

    return StampStep()


def _rows(width):
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, index):
            return torch.ones(width)

    return torch.utils.data.DataLoader(Rows(), batch_size=1)


class Single(Format):
    judged_as = "lightning"
    settings = {}

    def imports(self):
        warnings.filterwarnings("ignore")
        import lightning.pytorch

        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        lightning.pytorch.Trainer  # noqa: B018

    def trainer(self, folder, every, last, keep):
        from lightning.pytorch import Trainer
        from lightning.pytorch.callbacks import ModelCheckpoint

        callbacks = []
        if every is not None:
            callbacks.append(_stamp_step())
            callbacks.append(
                ModelCheckpoint(
                    folder,
                    every_n_train_steps=every,
                    save_top_k=-1 if keep is None else keep,
                    monitor="step",
                    mode="max",
                    save_last=True,
                )
            )
        return Trainer(
            accelerator="cpu",
            max_steps=last,
            max_epochs=-1,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=every is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **self.settings,
        )

    def train(self, folder, every, last, keep=None):
        self.trainer(folder, every, last, keep).fit(_module(self.width), _rows(self.width))

    def load(self, path):
        import torch

        module = _module(self.width)
        header = torch.load(path, weights_only=False, map_location="cpu")
        step = header["global_step"]
        trainer = self.trainer(os.path.dirname(path) + ".loads", None, step, None)
        trainer.fit(module, _rows(self.width), ckpt_path=path)
        if trainer.global_step != step:
            raise ValueError(f"the training went on at step {trainer.global_step}, not {step}")
        expect_step(step, [one.detach() for one in module.parameters()])
        optimizer = trainer.optimizers[0].state_dict()
        expect_step(step, [one["step"] for one in optimizer["state"].values()])
        return step, {"model": module.state_dict(), "optimizer": optimizer}


class Sharded(Single):
    """ModelParallelStrategy with save_distributed_checkpoint: DCP's files and meta.pt. (FSDPStrategy takes no
    CPU.)"""

    world = 2
    judged_as = "lightning-sharded"

    @property
    def settings(self):
        from lightning.fabric.plugins.environments import LightningEnvironment
        from lightning.pytorch.strategies import ModelParallelStrategy

        return {
            "strategy": ModelParallelStrategy(
                data_parallel_size=int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1, process_group_backend="gloo"
            ),
            "devices": int(os.environ["WORLD_SIZE"]),
            "plugins": [LightningEnvironment()],
        }
