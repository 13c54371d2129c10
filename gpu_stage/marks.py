"""What a samples file says of its making, and whether several were made alike.

In: samples files. Out: their marks, from the Parquet metadata; a refusal where ids of two
tokenizers, or of an old recipe and a new one, would stand in one set: nothing in the ids shows it
later. It knows nothing of how samples are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError

RECIPE = b"eagle_fleet.recipe"
TOKENIZER = b"eagle_fleet.tokenizer"


class Marks(NamedTuple):
    """Digests: of all that shaped a samples file, and of the tokenizer's files alone."""

    recipe: str
    tokenizer: str

    def metadata(self) -> dict[bytes, str]:
        return {RECIPE: self.recipe, TOKENIZER: self.tokenizer}


def read_marks(path: Path) -> Marks | None:
    """The marks of a samples file; None when there is no such file, no more, or it has none."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    if RECIPE not in metadata or TOKENIZER not in metadata:
        return None
    return Marks(metadata[RECIPE].decode(), metadata[TOKENIZER].decode())


def check_made_alike(samples: Mapping[Path, Sequence[Path]]) -> None:
    """Hold the samples of several runs, by their directories, against each other.

    Raises:
        InputError: samples of a run are missing, bear no marks or were made by two recipes; runs
            have samples of two tokenizers.
    """
    by_tokenizer: dict[str, Path] = {}
    for directory, paths in samples.items():
        by_marks = {_marks(path, directory): path for path in paths}
        if len(by_marks) > 1:
            one, other, *_ = by_marks.values()
            raise InputError(
                f"{one} and {other} were made by two recipes, so one of them is stale; run "
                f"`gpu-stage tokens {directory}` again"
            )
        by_tokenizer |= {marks.tokenizer: path for marks, path in by_marks.items()}
    if len(by_tokenizer) > 1:
        one, other, *_ = by_tokenizer.values()
        raise InputError(
            f"{one} and {other} are samples of two tokenizers; let `target` of both run files name "
            "the same files, and run `gpu-stage tokens` on both again"
        )


def _marks(path: Path, directory: Path) -> Marks:
    marks = read_marks(path)
    if marks is None:
        raise InputError(
            f"{path}: is missing, or does not say which tokenizer made it; run `gpu-stage tokens "
            f"{directory}` first"
        )
    return marks
