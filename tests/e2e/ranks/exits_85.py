"""One of four ranks fails with a traceback and exit code 85; the others die of the broken collective."""

import os
import sys
import traceback

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
for step in range(1000):
    dist.all_reduce(value)
    if step == 5 and dist.get_rank() == int(sys.argv[1]):
        try:
            raise RuntimeError("bad sample 17 in shard 4")
        except RuntimeError:
            traceback.print_exc()
        os._exit(85)
