"""One shard made: samples read, packed, sent through the target, written.

In: a piece of work, an engine. Out: the shard and its index under their names, or nothing.
"""

from collections.abc import Callable
from enum import StrEnum
from itertools import accumulate
from pathlib import Path

import msgspec
import torch

from fleet import __version__
from fleet.errors import InputError
from gpu_stage.claimed_file import claim, finish
from gpu_stage.engines.packing import make_pack, packs
from gpu_stage.engines.states import Engine
from gpu_stage.hidden import spool
from gpu_stage.hidden.cut import Piece, Work
from gpu_stage.hidden.index import Index, Sample, index_of
from gpu_stage.hidden.shard_file import Writer, mask_of
from gpu_stage.hidden.source import SampleRow


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
        index = _written(Writer(file, shape), work, piece, engine(), watch)
        if not watch.still_mine():
            return Outcome.BUSY
        finish(file, path)
        _keep(index_of(path), index)
    return Outcome.MADE


def _written(writer: Writer, work: Work, piece: Piece, engine: Engine, watch: Watch) -> Index:
    samples = _samples(piece)
    groups = packs([sample.ids for sample in samples], work.order.pack_tokens)
    made = [make_pack(group) for group in groups]
    for pack, states in zip(made, engine.states(made), strict=True):
        writer.add(states.all)
        watch.done(len(pack.boundaries) - 1, len(pack.ids))
    masks = [mask_of(sample.spans, len(sample.ids)) for sample in samples]
    bounds = torch.tensor([0, *accumulate(len(sample.ids) for sample in samples)])
    digest, error = writer.finish(torch.cat([pack.ids for pack in made]), torch.cat(masks), bounds)
    rows = [
        Sample(sample.prompt_id, sample.dataset, len(mask), int(mask.sum()))
        for sample, mask in zip(samples, masks, strict=True)
    ]
    return Index(
        contract=work.contract(piece),
        engine=work.order.engine,
        hidden_size=work.order.hidden_size,
        tokens=piece.tokens,
        loss_tokens=sum(row.loss_tokens for row in rows),
        samples=rows,
        bytes=piece.shape(work.order).bytes,
        xxh3_128=digest,
        float8_error=error,
        writer=f"eagle-fleet {__version__}",
    )


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
