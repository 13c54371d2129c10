"""One shard made: samples read, packed, sent through the target, written.

In: a piece of work, an engine. Out: the shard and its index under their names, or nothing.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from fleet.errors import InputError
from gpu_stage.claimed_file import claim, finish
from gpu_stage.engines.packing import make_pack, packs
from gpu_stage.engines.states import Engine
from gpu_stage.hidden import spool
from gpu_stage.hidden.cut import Piece, Work
from gpu_stage.hidden.index import Index, index_of
from gpu_stage.hidden.shard_file import mask_of
from gpu_stage.hidden.source import SampleRow
from gpu_stage.hidden.write import Read, write_shard


class Outcome(StrEnum):
    """What became of a shard that was to be made."""

    MADE = "made"
    UP_TO_DATE = "up to date"
    BUSY = "busy"


class Watch:
    """What is told while a shard is made. This one says nothing."""

    def done(self, samples: int, tokens: int) -> None:
        """So many more are through the target."""

    def waiting(self) -> None:
        """The spool is full."""

    def still_mine(self) -> bool:
        """Whether the shard is still this process's to finish."""
        return True


def make_shard(work: Work, piece: Piece, engine: Callable[[], Engine], watch: Watch) -> Outcome:
    """Make a shard, unless it is there or another process has it.

    Args:
        engine: called when it is needed: a target takes long to load.

    Raises:
        InputError: the samples are not what they were when the work was cut.
        ConfigError: the spool is too small for the shard.
    """
    path = work.path(piece)
    if work.made(piece):
        return Outcome.UP_TO_DATE
    with claim(path) as file:
        if file is None:
            return Outcome.BUSY
        if work.made(piece):  # by the process that had it a moment ago
            return Outcome.UP_TO_DATE
        index_of(path).unlink(missing_ok=True)  # of a shard that this one takes the place of
        shape = piece.shape(work.order)
        spool.reserve(
            work.folder,
            work.order.spool_bytes,
            shape.bytes,
            lambda: file.truncate(shape.bytes),
            watch.waiting,
        )
        index = _written(file, work, piece, engine(), watch)
        if not watch.still_mine():
            return Outcome.BUSY
        finish(file, path)
        _keep(index_of(path), index)
    return Outcome.MADE


def _written(file: BinaryIO, work: Work, piece: Piece, engine: Engine, watch: Watch) -> Index:
    rows = _samples(piece)
    groups = packs([row.ids for row in rows], work.order.pack_tokens)
    made = [make_pack(group) for group in groups]

    def states() -> Iterator[torch.Tensor]:
        for pack, some in zip(made, engine.states(made), strict=True):
            yield some.all
            watch.done(len(pack.boundaries) - 1, len(pack.ids))

    samples = [
        Read(row.prompt_id, row.dataset, torch.tensor(row.ids), mask_of(row.spans, len(row.ids)))
        for row in rows
    ]
    return write_shard(file, work.contract(piece), work.order.engine, samples, states())


def _samples(piece: Piece) -> list[SampleRow]:
    samples = list(piece.part.rows(piece.start, piece.end))
    if (len(samples), sum(len(s.ids) for s in samples)) != (piece.samples, piece.tokens):
        raise InputError(
            f"{piece.part.path}: rows {piece.start} to {piece.end} are not what they were when "
            "this command began; start it again"
        )
    return samples


def _keep(path: Path, index: Index) -> None:
    with claim(path) as file:
        if file is not None:
            file.write(msgspec.json.encode(index))
            finish(file, path)
