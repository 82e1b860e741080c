"""transformers Trainer: checkpoint-N folders, made by a real training of a tiny GPT-2."""

import logging
import os
import shutil

from fw_formats import Format, expect_step


class _Data:
    """A few token rows; what they say does not matter."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        import torch

        tokens = torch.arange(8) % 16
        return {"input_ids": tokens, "labels": tokens}


class Trainer(Format):
    judged_as = "trainer"
    save_only_model = False
    may_be_missing = {
        "generation_config.json": "only generate() reads it; from_pretrained makes the default one",
        "training_args.bin": "the Trainer writes it and never reads it",
        "rng_state.pth": "the Trainer says that it is missing and goes on with other random numbers",
        "rng_state_*.pth": "as rng_state.pth; the judge misses it where an older checkpoint has one more",
        "scaler.pt": "written only with fp16",
    }
    may_be_cut = {
        "generation_config.json": "not read when training goes on",
        "training_args.bin": "never read",
    }
    may_have_holes = {
        "model.safetensors": "the format has no checksum: zeros in the data are values like others",
    }

    def imports(self):
        import transformers

        transformers.logging.set_verbosity_error()
        logging.disable(logging.WARNING)
        # Lazy modules: these are the ones that load the rest.
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: F401

    def model(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=16, n_positions=8, n_embd=self.width, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
            )
        )

    def trainer(self, folder, every, last, keep):
        import torch
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class StampStep(TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                with torch.no_grad():
                    for one in model.parameters():
                        one.fill_(float(state.global_step))

        return Trainer(
            model=self.model(),
            train_dataset=_Data(),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=last,
                save_steps=every,
                save_total_limit=keep,
                save_only_model=self.save_only_model,
                per_device_train_batch_size=1,
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            callbacks=[StampStep()],
        )

    def train(self, folder, every, last, keep=None):
        self.trainer(folder, every, last, keep).train()

    def load(self, path):
        """Goes on training from the checkpoint: all that a resume reads is read. (The Trainer makes one step
        also where max_steps is reached.)"""
        import torch
        from transformers import GPT2LMHeadModel, TrainerState

        step = TrainerState.load_from_json(os.path.join(path, "trainer_state.json")).global_step
        work = path.rstrip("/") + ".loads"
        trainer = self.trainer(work, 1 << 30, step, None)
        try:
            trainer.train(resume_from_checkpoint=path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if trainer.state.global_step not in (step, step + 1):
            raise ValueError(f"the training went on at step {trainer.state.global_step}, not {step}")
        model = GPT2LMHeadModel.from_pretrained(path)
        expect_step(step, [one.detach() for one in model.parameters()])
        state = {"model": model.state_dict()}
        if not self.save_only_model:
            optimizer = torch.load(os.path.join(path, "optimizer.pt"), weights_only=True)
            expect_step(step, [torch.as_tensor(one["step"]) for one in optimizer["state"].values()])
            state["optimizer"] = optimizer
        return step, state


class TrainerDdp(Trainer):
    world = 2


class TrainerWeights(Trainer):
    save_only_model = True
    complete = "WEIGHTS_ONLY"
