#!/usr/bin/env python3
"""Trains a small character-level GPT on any text file with PyTorch DDP.

Plain PyTorch: gloo on CPUs, NCCL on GPUs (one GPU per rank, chosen by LOCAL_RANK), the usual environment
(RANK, WORLD_SIZE, MASTER_ADDR, ...), so that it runs alike under dgxrun, torchrun or by hand:

    dgxrun -g 2 docs/examples/train_gpt.py --ckpt-dir ckpt
    torchrun --nproc-per-node 2 docs/examples/train_gpt.py --ckpt-dir ckpt

Every --save-every steps rank 0 writes <ckpt-dir>/step_NNNNNN.pt: model, optimizer, step and the random
state of every rank, under a name that ends in .tmp first and then renamed, so that a checkpoint with its
final name is always complete. The run goes on from --resume, else from DGXRUN_RESUME_FROM, else from
step 0. With as many ranks as before, a resumed run prints exactly the losses of an undisturbed one.
"""

import argparse
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

DEFAULT_TEXTS = (
    "/usr/share/common-licenses/GPL-3",  # Debian, Ubuntu
    "/usr/share/licenses/common/GPL3/license.txt",  # Arch
    "/usr/share/licenses/gpl-3.0/COPYING",
)


class Block(nn.Module):
    """One transformer layer: causal self-attention, then an MLP, each on a residual branch."""

    def __init__(self, width, heads, context, dropout):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)
        self.register_buffer("causal", torch.ones(context, context, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        # Written out, since the fused kernels are not deterministic on every device.
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.causal[:length, :length], float("-inf"))
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.project(mixed))
        return x + self.drop(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, vocabulary, context, width, heads, layers, dropout):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="file to learn (default: the GPL-3 as the distribution ships it)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=20, metavar="K", help="steps; 0: never")
    parser.add_argument("--ckpt-dir", default="ckpt", metavar="DIR")
    parser.add_argument("--resume", default=os.environ.get("DGXRUN_RESUME_FROM"), metavar="FILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per rank; sums depend on it")
    aid = parser.add_argument_group("test aid: holds the run at a known place, without sleeping")
    aid.add_argument("--hold-at", type=int, default=-1, metavar="STEP")
    aid.add_argument("--hold-fifo", metavar="FIFO", help="rank 0 opens it before STEP and waits for a writer")
    return parser.parse_args()


def read_text(path):
    """The text to learn; exits with one line when there is none."""
    candidates = [path] if path else [name for name in DEFAULT_TEXTS if os.path.exists(name)]
    if not candidates:
        sys.exit("train_gpt.py: no text to learn: name a file with --text (looked for " + ", ".join(DEFAULT_TEXTS) + ")")
    try:
        with open(candidates[0], encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"train_gpt.py: cannot read --text {candidates[0]}: {error}")


def random_state(device):
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state, device):
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def save(directory, step, model, optimizer, characters, device):
    """Collective: every rank gives its random state, rank 0 writes. `step`: the next one to do."""
    states = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(random_state(device), states, dst=0)
    if dist.get_rank() != 0:
        return
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"step_{step:06d}.pt")
    with open(path + ".tmp", "wb") as file:
        torch.save(
            {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": states,
                "characters": characters,
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    print(f"saved {path}")


def load(path, model, optimizer, characters, device):
    """Returns the step to go on with."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if saved["characters"] != characters:
        sys.exit(f"train_gpt.py: {path} was trained on another text")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if len(saved["random"]) == dist.get_world_size():
        set_random_state(saved["random"][dist.get_rank()], device)
    elif dist.get_rank() == 0:
        print(f"{path} is of {len(saved['random'])} ranks: the data order will differ from that run's")
    return saved["step"]


def loss_of(model, tokens, batch, context, device):
    """Loss of one random batch of this rank."""
    starts = torch.randint(len(tokens) - context - 1, (batch,)).tolist()
    x = torch.stack([tokens[i : i + context] for i in starts]).to(device)
    y = torch.stack([tokens[i + 1 : i + context + 1] for i in starts]).to(device)
    logits = model(x)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def settle_buckets(model, tokens, args, device):
    """One backward pass that trains nothing.

    DDP lays its gradient buckets out anew after the first backward pass, and another layout adds the
    ranks' gradients in another order. So that a step after a resume adds like the same step of an
    undisturbed run, the first pass is done before the first step.
    """
    state = random_state(device)
    loss_of(model, tokens, args.batch, args.context, device).backward()
    model.zero_grad(set_to_none=True)
    set_random_state(state, device)


def train(args, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    text = read_text(args.text)
    characters = "".join(sorted(set(text)))
    if len(text) < args.context + 2:
        sys.exit(f"train_gpt.py: the text must be longer than --context {args.context}")
    number = {character: i for i, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])

    torch.manual_seed(args.seed)  # the same weights everywhere
    net = Gpt(len(characters), args.context, args.width, args.heads, args.layers, args.dropout).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    model = DistributedDataParallel(net, device_ids=[device.index] if device.type == "cuda" else None)
    torch.manual_seed(args.seed * 1_000_003 + rank)  # other data and dropout on each rank
    settle_buckets(model, tokens, args, device)

    first = load(args.resume, net, optimizer, characters, device) if args.resume else 0
    if rank == 0:
        size = sum(parameter.numel() for parameter in net.parameters())
        print(f"{size} parameters, {len(text)} characters, {world} ranks on {device.type}")
        if args.resume:
            print(f"resumed from {args.resume} at step {first}")

    shown = torch.zeros(1, dtype=torch.float64)
    for step in range(first, args.steps):
        if rank == 0 and step == args.hold_at and args.hold_fifo:
            print(f"holding at step {step}")
            with open(args.hold_fifo, "rb"):
                pass
        loss = loss_of(model, tokens, args.batch, args.context, device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        shown = loss.detach().to(torch.float64).reshape(1)
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step + 1} loss {shown.item() / world:.9f}")
        if args.save_every and (step + 1) % args.save_every == 0:
            save(args.ckpt_dir, step + 1, net, optimizer, characters, device)
    if rank == 0 and first < args.steps:
        print(f"done: {args.steps} steps, final loss {shown.item() / world:.9f}")


def main():
    args = parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(args.threads)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
