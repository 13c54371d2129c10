"""Samples with their hidden states, read by memory map in an order that the seed alone gives.

In: a folder of shards. Out: `Example`s to train on and held out, and which packs make up which
update. Invariant: the order of an epoch is a matter of seed, epoch and the samples' lengths, so a
training that is gone on with sees what it would have seen.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from fleet.errors import InputError
from gpu_stage.draft.batch import Example
from gpu_stage.hidden.index import Contract
from gpu_stage.hidden.inspect import shards_below
from gpu_stage.hidden.shard_file import Shard
from gpu_stage.training.settings import TrainFile

HELDOUT = "heldout"


@dataclass(frozen=True)
class Place:
    """Where a sample lies."""

    shard: Path
    start: int
    end: int
    prompt_id: str
    dataset: str


@dataclass(frozen=True)
class Data:
    """All samples of a folder of shards."""

    train: list[Place]
    heldout: list[Place]
    #: Of the shards: one target, its layers.
    contract: Contract
    #: Tells these samples from others.
    fingerprint: str


def open_data(folder: Path, file: TrainFile) -> Data:
    """
    Args:
        folder: of shards. Below `heldout/` lies what a set holds out; of a run's samples, a share
            of the prompts is, by a hash of their ids.

    Raises:
        InputError: no shards, of more than one kind, one not whole, or none to train on.
    """
    shards = [Shard(path) for path in shards_below(folder)]
    if not shards:
        raise InputError(f"{folder}: no shards there; `gpu-stage extract` makes them")
    first = shards[0].index.contract
    for shard in shards:
        other = shard.index.contract
        if (other.target, other.layers) != (first.target, first.layers):
            raise InputError(
                f"{shard.path}: states of {other.target.name}, layers {other.layers}; the other "
                f"shards are of {first.target.name}, layers {first.layers}"
            )
    set_aside = any(_of_set(folder, shard) for shard in shards)
    train: list[Place] = []
    heldout: list[Place] = []
    for shard in shards:
        for place in _places(shard):
            out = _of_set(folder, shard) if set_aside else _hashed(place, file.heldout_share)
            (heldout if out else train).append(place)
    if not train:
        raise InputError(f"{folder}: no samples to train on, {len(heldout):,} are held out")
    seen = hashlib.sha256()
    for shard in shards:
        seen.update(f"{shard.path.relative_to(folder)} {shard.index.xxh3_128}".encode())
    return Data(train, heldout, first, seen.hexdigest())


def _of_set(folder: Path, shard: Shard) -> bool:
    return shard.path.relative_to(folder).parts[0] == HELDOUT


def _places(shard: Shard) -> Iterator[Place]:
    """Those with something that the target wrote behind something that it wrote."""
    start = 0
    for sample in shard.index.samples:
        if sample.loss_tokens >= 2:
            end = start + sample.tokens
            yield Place(shard.path, start, end, sample.prompt_id, sample.dataset)
        start += sample.tokens


def _hashed(place: Place, share: float) -> bool:
    digest = hashlib.sha256(place.prompt_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


@lru_cache(maxsize=64)
def _shard(path: Path) -> Shard:
    return Shard(path)


def read(place: Place, most_tokens: int = 0) -> Example:
    """A sample, its states in bf16; its first tokens when `most_tokens` is not 0."""
    shard = _shard(place.shard)
    end = min(place.end, place.start + most_tokens) if most_tokens else place.end
    return Example(
        shard.input_ids[place.start : end].long(),
        shard.loss_mask[place.start : end],
        shard.hidden_states(place.start, end),
    )


def packs(places: Sequence[Place], order: Sequence[int], file: TrainFile) -> list[list[Place]]:
    """Groups of at most `pack_tokens` tokens, in order; a longer sample is one of its own."""
    groups: list[list[Place]] = []
    room = 0
    for at in order:
        place = places[at]
        length = place.end - place.start
        length = min(length, file.max_length_tokens or length)
        if not groups or length > room:
            groups.append([])
            room = file.pack_tokens
        groups[-1].append(place)
        room -= length
    return groups


def epoch_packs(data: Data, file: TrainFile, epoch: int) -> list[list[Place]]:
    """An epoch's packs, shuffled."""
    generator = torch.Generator().manual_seed(file.seed * 1_000_003 + epoch)
    order = torch.randperm(len(data.train), generator=generator).tolist()
    return packs(data.train, order, file)
