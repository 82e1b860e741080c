"""One module per framework. Each writes checkpoints with the framework's own code and loads them with it.

What they train is the smallest thing that the framework takes. Before a save at step N every parameter is set
to N, so a loader can tell whether what it got is one save or a mix of two (`expect_step`).
"""

import importlib
import re

# name: (module, class). A name is a file name too.
FORMATS = {
    "torch": ("plain", "Torch"),
    "torch-legacy": ("plain", "TorchLegacy"),
    "torch-many-members": ("plain", "TorchManyMembers"),
    "safetensors": ("safetensors_files", "Single"),
    "safetensors-shards": ("safetensors_files", "Shards"),
    "trainer": ("trainer", "Trainer"),
    "trainer-ddp": ("trainer", "TrainerDdp"),
    "trainer-weights": ("trainer", "TrainerWeights"),
    "accelerate": ("accelerate_state", "SaveState"),
    "lightning": ("lightning_files", "Single"),
    "lightning-sharded": ("lightning_files", "Sharded"),
    "dcp": ("dcp", "Dcp"),
    "dcp-async": ("dcp", "DcpAsync"),
    "dcp-overwrite": ("dcp", "DcpOverwrite"),
    "torch-overwrite": ("plain", "TorchOverwrite"),
    "deepspeed-0": ("deepspeed_zero", "Zero0"),
    "deepspeed-1": ("deepspeed_zero", "Zero1"),
    "deepspeed-2": ("deepspeed_zero", "Zero2"),
    "deepspeed-3": ("deepspeed_zero", "Zero3"),
    "megatron-torch_dist": ("megatron", "TorchDist"),
    "megatron-legacy": ("megatron", "Legacy"),
}


def make(name, **settings):
    module, cls = FORMATS[name]
    made = getattr(importlib.import_module(f"fw_formats.{module}"), cls)(**settings)
    made.name = name
    return made


class Format:
    """What the tests ask of a framework."""

    name = ""
    # Ranks that write.
    world = 1
    # Name of the format as the judge says it (docs/checkpoints.md), and its verdict on a complete one.
    judged_as = ""
    complete = "COMPLETE"
    # File (relative to the checkpoint, fnmatch) -> why a start does as well without it.
    may_be_missing = {}
    # File -> why a cut-off or altered one cannot be told, or does no harm.
    may_be_cut = {}
    # File -> why bytes replaced by zeros cannot be told.
    may_have_holes = {}
    # Whether a save leaves one checkpoint more, or goes over the last one.
    overwrites = False
    # Where the checkpoints lie in the folder that train() is given.
    subfolder = ""

    def __init__(self, width=8):
        # Size of the model; a save of a larger one takes longer, so a kill hits its middle more often.
        self.width = width

    def imports(self):
        """Imports the framework: once, in the parent of all ranks."""

    def train(self, folder, every, last, keep=None):
        """In each rank: trains, and saves at every `every` steps up to `last`, into `folder`. `keep`: only
        that many checkpoints stay."""
        raise NotImplementedError

    def is_step(self, name, step):
        """Whether a name in the folder is the save of that step."""
        return re.search(rf"(^|\D)0*{step}(\D|$)", name) is not None

    def mix_is_untold(self, case):
        """Why nothing in the format tells this mix of two saves; empty: it must be told."""
        return ""

    def may_pass_over(self, finding):
        """Whether the judge may say of a checkpoint that the library does load that it is not complete."""
        return finding["verdict"] == "WEIGHTS_ONLY"

    def load(self, path):
        """Loads the checkpoint with the framework's own code as a training that goes on would; gives
        (step, state), raises if it cannot be loaded."""
        raise NotImplementedError


def expect_step(step, tensors):
    """Raises unless all elements of all tensors are `step`."""
    for tensor in tensors:
        if not bool((tensor == step).all()):
            raise ValueError(f"loaded a mix: {tensor.flatten()[:4].tolist()} where all should be {step}")


def keep_newest(folder, keep, names):
    """Removes what is older than the newest `keep` of names (oldest first), as a script's own pruning."""
    import os
    import shutil

    if keep is None:
        return
    for name in names[:-keep]:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)
