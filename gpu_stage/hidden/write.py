"""A whole shard written: states as they come, then what they are the states of, and its index."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

import torch

from fleet import __version__
from gpu_stage.hidden.index import Contract, Index, Sample
from gpu_stage.hidden.shard_file import Shape, Writer


@dataclass(frozen=True)
class Read:
    """A sample as the target read it."""

    prompt_id: str
    dataset: str
    ids: torch.Tensor  # [T]
    mask: torch.Tensor  # [T] bool: whether the target wrote the token


def write_shard(
    file: BinaryIO,
    contract: Contract,
    engine: str,
    samples: Sequence[Read],
    states: Iterable[torch.Tensor],  # of [t, 4, H]
) -> Index:
    """Write a shard into an open file; the index that belongs beside it.

    Args:
        engine: what made the states.
        states: of the samples' tokens in order, in parts of any length.
    """
    parts = iter(states)
    first = next(parts)
    tokens = sum(len(sample.ids) for sample in samples)
    shape = Shape(tokens, len(samples), first.shape[-1], contract.storage)
    writer = Writer(file, shape)
    writer.add(first)
    for part in parts:
        writer.add(part)
    digest, error = writer.finish(
        torch.cat([sample.ids for sample in samples]),
        torch.cat([sample.mask for sample in samples]),
        torch.tensor([0, *accumulate(len(sample.ids) for sample in samples)]),
    )
    rows = [
        Sample(sample.prompt_id, sample.dataset, len(sample.ids), int(sample.mask.sum()))
        for sample in samples
    ]
    return Index(
        contract=contract,
        engine=engine,
        hidden_size=shape.hidden_size,
        tokens=tokens,
        loss_tokens=sum(row.loss_tokens for row in rows),
        samples=rows,
        bytes=shape.bytes,
        xxh3_128=digest,
        float8_error=error,
        writer=f"eagle-fleet {__version__}",
    )
