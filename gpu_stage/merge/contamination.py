"""Evaluation sets, and whether a prompt has one of their prompts in it.

In: files of evaluation prompts. Out: for a prompt, the sets it overlaps. Two prompts overlap when
they share 13 consecutive words, case and punctuation aside: the measure of GPT-3 (Brown et al.
2020, appendix C), which most of the field has kept. An evaluation prompt of fewer words matches
only a message that has exactly the same. Memory: 16 bytes for each n-gram of the sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage.merge.settings import EvaluationSet
from gpu_stage.merge.words import Numbers, ngrams, text_of, user_texts, words_of

N = 13
COLUMNS = ("messages", "conversations", "turns", "prompt", "instruction", "question", "problem")
COLUMNS_TRIED = (*COLUMNS, "text")


@dataclass(frozen=True)
class Index:
    """Which sets hold an n-gram: the bits of `sets` at its place in `numbers`."""

    numbers: Numbers
    sets: Numbers

    @classmethod
    def of(cls, numbers: list[Numbers]) -> Index:
        """Of the numbers of each set."""
        known = np.unique(np.concatenate([*numbers, np.empty(0, np.uint64)]))
        bits = np.zeros(len(known), np.uint64)
        for place, some in enumerate(numbers):
            bits[np.searchsorted(known, some)] |= np.uint64(1 << place)
        return cls(known, bits)

    def find(self, numbers: Numbers) -> int:
        """The bits of the sets that hold one of the numbers."""
        if not len(self.numbers) or not len(numbers):
            return 0
        places = np.searchsorted(self.numbers, numbers)
        places[places == len(self.numbers)] = 0
        found = self.sets[places][self.numbers[places] == numbers]
        return int(np.bitwise_or.reduce(found)) if len(found) else 0


class EvaluationSets:
    """The evaluation sets of a merge."""

    def __init__(self, chosen: Sequence[EvaluationSet]) -> None:
        self.names = [one.name for one in chosen]
        self.prompts: dict[str, int] = {}
        long: list[Numbers] = []
        short: list[Numbers] = []
        for one in chosen:
            texts = [words_of(text) for text in read_prompts(one)]
            self.prompts[one.name] = len(texts)
            long.append(_numbers([words for words in texts if len(words) >= N]))
            short.append(_numbers([words for words in texts if len(words) < N]))
        self._long, self._short = Index.of(long), Index.of(short)

    def matches(self, texts: Sequence[Sequence[str]]) -> int:
        """The sets that overlap with a prompt, a bit for each in their order.

        Args:
            texts: the words of each user message.
        """
        bits = 0
        for words in texts:
            index = self._long if len(words) >= N else self._short
            bits |= index.find(ngrams(words, N))
        return bits

    def named(self, bits: int) -> list[str]:
        """The names of the sets whose bits are set."""
        return [name for place, name in enumerate(self.names) if bits >> place & 1]


def _numbers(texts: list[list[str]]) -> Numbers:
    return np.concatenate([*(ngrams(words, N) for words in texts), np.empty(0, np.uint64)])


def read_prompts(chosen: EvaluationSet) -> Iterator[str]:
    """The prompts of a set; of a conversation, each of the user's messages.

    Raises:
        InputError: the file is missing, is neither JSON Lines nor Parquet, or a row has no
            prompt.
    """
    path = Path(chosen.path)
    rows = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    for number, row in enumerate(rows, 1):
        texts = [text for text in _texts(row, chosen.column) if text.strip()]
        if not texts:
            raise InputError(
                f"{path}:{number}: no prompt found for evaluation set {chosen.name}; "
                f"set its `column` (tried {chosen.column or ', '.join(COLUMNS_TRIED)})"
            )
        yield from texts


def _texts(row: Any, column: str | None) -> list[str]:
    if not isinstance(row, dict):
        return []
    names = (column,) if column else COLUMNS_TRIED
    name = next((name for name in names if row.get(name)), None)
    value = row[name] if name else None
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return user_texts(value)
    if isinstance(value, list):
        return [text_of(item) for item in value]
    extra = text_of(row.get("input")) if name == "instruction" else ""
    return [f"{text_of(value)}\n\n{extra}" if extra.strip() else text_of(value)]


def _json_lines(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line) if line.strip() else None
                except ValueError as error:
                    raise InputError(f"{path}:{number}: not JSON: {error}") from error
                if row is not None:
                    yield row
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _parquet(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
