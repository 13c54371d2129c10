"""All shards of an order made that are not there, by this process.

In: a piece of work. Out: what became of its shards. Start it once a GPU, each with its own
`CUDA_VISIBLE_DEVICES`: they share the work by claims on the files.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console

from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.make import Outcome, Watch, make_shard
from gpu_stage.hidden.target import engine_for
from gpu_stage.progress import Bar


@dataclass
class Extracted:
    """What became of the shards of an order."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    #: Why a shard could not be made, by its name.
    failed: dict[str, str] = field(default_factory=dict)


class _Shown(Watch):
    """Samples on a bar; a word when the spool is full."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self._console, self._bar, self._told = console, bar, False

    def done(self, samples: int, tokens: int) -> None:
        self._bar.add(samples, tokens)

    def waiting(self) -> None:
        if not self._told:
            self._console.print("The spool is full: waiting for training to consume shards")
        self._told = True


def extract_here(work: Work, console: Console) -> Extracted:
    """Make what is missing, in order."""
    missing = [piece for piece in work.pieces if not work.made(piece)]
    result = Extracted(Counter({Outcome.UP_TO_DATE: len(work.pieces) - len(missing)}))
    began = time.monotonic()
    with Bar(console, "extract", sum(piece.samples for piece in missing)) as bar:
        watch = _Shown(console, bar)
        for piece in missing:
            outcome = make_shard(work, piece, lambda: engine_for(work.order), watch)
            result.outcomes[outcome] += 1
            result.tokens += piece.tokens if outcome is Outcome.MADE else 0
    result.seconds = time.monotonic() - began
    return result
