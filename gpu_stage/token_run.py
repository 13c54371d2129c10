"""All parts of a run made into samples that are not yet, on this machine.

In: a run's configuration. Out: what became of its parts. Incremental by name and recipe: a part
whose samples file bears the digest of the recipe is left alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from fleet.run_config import RunConfig
from gpu_stage import crew
from gpu_stage.console import err
from gpu_stage.prior import learn_if_possible, read_prior, trust_if_possible
from gpu_stage.progress import Bar
from gpu_stage.recipe import Recipe, recipe_of
from gpu_stage.samples import completion_parts
from gpu_stage.tokenise import Outcome, up_to_date


@dataclass
class Made:
    """What became of the parts of a run."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    #: Why a part could not be made, by its path.
    failed: dict[Path, str] = field(default_factory=dict)
    rows: int = 0
    tokens: int = 0

    def count(self, rows: int, tokens: int) -> None:
        self.rows += rows
        self.tokens += tokens


def tokenise(config: RunConfig, make: Callable[[RunConfig], Made]) -> Made:
    """Make what is new; and all again once it is known, or known better, how ids are recovered.

    Args:
        make: makes what has no samples by the recipe, here or elsewhere.
    """
    made = make(config)
    if made.failed:
        return made
    if count := learn_if_possible(config, recipe_of(config).renderer()):
        err.print(
            f"Learned from {count:,} exact samples how the target departs from its canonical ids:"
            " samples whose count is off are looked at again",
            highlight=False,
            soft_wrap=True,
        )
    known = read_prior(config.directory) is not None
    return make(config) if known and trust_if_possible(config) else made


def new_parts(config: RunConfig, recipe: Recipe) -> tuple[list[Path], int]:
    """The parts that have no samples by this recipe, and how many have.

    Raises:
        InputError: the run has no completions.
    """
    directory = config.directory
    parts = completion_parts(directory)
    if not parts:
        raise InputError(
            f"{directory}: no completions there; `producer run {config.path}` buys them"
        )
    new = [part for part in parts if not up_to_date(directory, part, recipe)]
    return new, len(parts) - len(new)


def tokenise_here(config: RunConfig, processes: int) -> Made:
    """Make what is new, by so many processes; 0: one a core."""
    recipe = recipe_of(config)
    parts, there = new_parts(config, recipe)
    made = Made(Counter({Outcome.UP_TO_DATE: there} if there else {}))
    count = min(processes or os.cpu_count() or 1, len(parts))
    with Bar(err, "tokens", row_count(parts)) as bar:
        for event in crew.make(config.directory, parts, recipe, count):
            match event:
                case crew.Judged(_, rows, tokens):
                    bar.add(rows, tokens)
                    made.count(rows, tokens)
                case crew.Finished(_, outcome):
                    made.outcomes[outcome] += 1
                case crew.Failed(part, why):
                    made.failed[part] = why
    return made


def row_count(parts: Sequence[Path]) -> int:
    """Rows of part files by their footers; one that has none counts nothing."""
    return sum(map(_rows, parts))


def _rows(part: Path) -> int:
    try:
        return int(pq.read_metadata(part).num_rows)
    except pa.ArrowInvalid:
        return 0
