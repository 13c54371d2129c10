"""Last states that extraction has left: of a sample that has them, the audit costs the head alone.

In: a folder of shards, samples. Out: h[L] of those that are there, in bf16 as they were computed;
fp8 is rounded further and would pass for a drift.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import torch

from fleet.errors import InputError
from gpu_stage.audit.choose import Chosen
from gpu_stage.hidden.index import Index, index_of, read_index
from gpu_stage.hidden.inspect import shards_below
from gpu_stage.hidden.shard_file import Shard


class Place(NamedTuple):
    """Where a sample's states lie."""

    shard: Path
    start: int
    end: int


def find(folder: Path, target: str, samples: Sequence[Chosen]) -> Iterator[tuple[int, Place]]:
    """Samples, by their place in the list, that a shard of this target names.

    Args:
        target: fingerprint of its weights.
    """
    wanted = {(sample.dataset, sample.prompt_id): n for n, sample in enumerate(samples)}
    for path in shards_below(folder):
        index = read_index(index_of(path))
        contract = index.contract
        if contract.target.fingerprint == target and contract.storage == "bf16" and path.exists():
            for key, start, end in _rows(index):
                if key in wanted:
                    yield wanted[key], Place(path, start, end)


def _rows(index: Index) -> Iterator[tuple[tuple[str, str], int, int]]:
    ends = accumulate(sample.tokens for sample in index.samples)
    for sample, end in zip(index.samples, ends, strict=True):
        yield (sample.dataset, sample.prompt_id), end - sample.tokens, end


def last_states(
    folder: Path, target: str, samples: Sequence[Chosen]
) -> Iterator[tuple[int, torch.Tensor]]:
    """h[L], [T, H], of the samples whose states are there and are of the same ids."""
    places = find(folder, target, samples)
    for path, group in groupby(places, key=lambda found: found[1].shard):
        try:
            shard = Shard(path)
        except InputError:  # consumed meanwhile, or cut short: the target says it again
            continue
        ids = shard.input_ids
        for n, place in group:
            if ids[place.start : place.end].tolist() == samples[n].ids:
                yield n, shard.hidden_states(place.start, place.end)[:, -1]
