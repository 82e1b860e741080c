"""Loads a checkpoint with the real library in a forked child, so that one load leaves nothing to the next."""

import hashlib
import json
import os

from fw_kit import ranks


def digest(state):
    """A name for the values of a nest of dicts, lists and tensors. Two equal states have equal names."""
    hasher = hashlib.sha256()
    _feed(hasher, state)
    return hasher.hexdigest()[:16]


def _feed(hasher, value):
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        hasher.update(f"tensor{plain.dtype}{tuple(plain.shape)}".encode())
        hasher.update(plain.view(torch.uint8).numpy().tobytes() if plain.dim() else repr(plain.item()).encode())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            hasher.update(f"key{key}".encode())
            _feed(hasher, value[key])
    elif isinstance(value, (list, tuple)):
        hasher.update(f"list{len(value)}".encode())
        for one in value:
            _feed(hasher, one)
    elif isinstance(value, (int, float, str, bool, bytes, type(None))):
        hasher.update(repr(value).encode())
    # Others are objects of the framework whose printed form holds addresses: left out.


def _load(writer, path, answer):
    try:
        step, state = writer.load(path)
        result = {"path": path, "step": step, "digest": digest(state)}
    except BaseException as error:  # also SystemExit: it would look like a load
        text = " ".join(f"{type(error).__name__}: {error}".split())
        result = {"path": path, "error": text[:300] or "no word"}
    with os.fdopen(answer, "w") as pipe:
        json.dump(result, pipe)


def in_child(writer, path, log=os.devnull):
    """{"path", "step", "digest"}, or {"path", "error"} where the library does not load it. Formats of several
    ranks are loaded by one: what it reads holds all ranks' parts or the load fails."""
    reader, answer = os.pipe()
    gang = ranks.Gang(1, _load, writer, path, answer, log=log)
    os.close(answer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    statuses = gang.wait()
    if not text:
        return {"path": path, "error": f"the loading process ended with {statuses}"}
    return json.loads(text)


