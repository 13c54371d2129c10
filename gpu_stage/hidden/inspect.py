"""What `gpu-stage inspect` says of a shard, or of a folder of them."""

from pathlib import Path
from typing import Any

import msgspec
import torch

from fleet.errors import InputError
from gpu_stage.hidden.index import index_of, read_index
from gpu_stage.hidden.shard_file import Shard

#: Tokens whose states are looked at.
GLANCE_TOKENS = 256


def shards_below(folder: Path) -> list[Path]:
    """All finished shards, in order; those that were consumed too."""
    found = sorted(folder.rglob("part-*.json"))
    return [path.with_suffix(".safetensors") for path in found]


def inspect(path: Path, *, check: bool) -> dict[str, Any]:
    """The index of one shard and a glance at its states.

    Args:
        check: hold the content against its checksum.

    Raises:
        InputError: it is not a whole shard.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: not a shard of hidden states; name a .safetensors or a folder")
    shard = Shard(path)
    if check:
        shard.check()
    states = shard.hidden_states(0, GLANCE_TOKENS).float()  # [t, 4, H]
    index: dict[str, Any] = msgspec.to_builtins(shard.index)
    return index | {
        "checked": check,
        "finite": bool(torch.isfinite(states).all()),
        "rms": dict(
            zip(
                ("low", "middle", "high", "last"),
                states.square().mean((0, 2)).sqrt().tolist(),
                strict=True,
            )
        ),
    }


def summary(folder: Path, *, check: bool) -> dict[str, Any]:
    """What a folder holds.

    Raises:
        InputError: it holds no shards, or one is not whole.
    """
    shards = shards_below(folder)
    if not shards:
        raise InputError(f"{folder}: no shards there; `gpu-stage extract` makes them")
    indexes = [read_index(index_of(path)) for path in shards]
    there = [path for path in shards if path.exists()]
    for path in there:
        shard = Shard(path)
        if check:
            shard.check()
    return {
        "shards": len(shards),
        "consumed": len(shards) - len(there),
        "samples": sum(len(index.samples) for index in indexes),
        "tokens": sum(index.tokens for index in indexes),
        "loss_tokens": sum(index.loss_tokens for index in indexes),
        "bytes": sum(path.stat().st_size for path in there),
        "checked": check,
    }
