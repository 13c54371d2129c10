"""Whether an endpoint's bills have the token counts that the target's tokenizer finds.

In: the answers of a run on disk, a renderer. Out: an `Agreement` for each endpoint and for each
dataset. A provider whose counts are off by a constant renders another template, or leaves out
the end token; one whose counts are off at random serves something else. Answers without usage,
and those that make no sample whatever their counts, are not compared.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fleet.run_config import RunConfig
from tokens import Prompt, Renderer, Rules, Unrenderable, constant_offset, read_body, verify

COLUMNS = ["endpoint", "messages", "tools", "response"]
#: Of a run that has more answers, the first so many of each part file are looked at.
MOST_OF_A_PART = 500
#: Fewer differences than this make no constant.
LEAST_FOR_CONSTANT = 10

#: Anything that is a sample or is off: truncated answers are counted too.
_RULES = Rules(truncated=True)


@dataclass
class Agreement:
    """Billed minus found, of each answer that could be compared."""

    prompts: list[int] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return len(self.prompts)

    @property
    def off(self) -> int:
        """Answers of which either count differs."""
        return sum(bool(a or b) for a, b in zip(self.prompts, self.completions, strict=True))

    def constants(self) -> list[str]:
        """What is off by the same number every time, in words."""
        named = (("prompts", self.prompts), ("completions", self.completions))
        return [
            f"{name} billed with {offset:+d} tokens in {found.count(offset)} of {len(found)}"
            for name, found in named
            if (offset := constant_offset(found, LEAST_FOR_CONSTANT))
        ]


def check_counts(config: RunConfig, renderer: Renderer) -> dict[str, dict[str, Agreement]]:
    """Agreements by `endpoint` and by `dataset`, each by name."""
    found: dict[str, dict[str, Agreement]] = {
        by: defaultdict(Agreement) for by in ("endpoint", "dataset")
    }
    for row in _rows(sorted((config.directory / "completions").glob("*/part-*.parquet"))):
        differences = _differences(renderer, row, config.sampling.thinking)
        if differences:
            for by, agreements in found.items():
                agreements[str(row[by])].prompts.append(differences[0])
                agreements[str(row[by])].completions.append(differences[1])
    return found


def _rows(parts: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for part in parts:
        with pq.ParquetFile(part) as file:
            batch = next(file.iter_batches(MOST_OF_A_PART, columns=COLUMNS), None)
        for row in batch.to_pylist() if batch else []:
            yield {**row, "dataset": part.parent.name.removeprefix("dataset=")}


def _differences(
    renderer: Renderer, row: Mapping[str, Any], thinking: bool
) -> tuple[int, int] | None:
    tools = json.loads(row["tools"]) if row["tools"] else None
    try:
        prompt = Prompt(json.loads(row["messages"]), tools, thinking)
    except Unrenderable:
        return None
    counts = verify(renderer, prompt, read_body(row["response"].encode()), _RULES).counts
    if counts.prompt_difference is None or counts.completion_difference is None:
        return None
    return counts.prompt_difference, counts.completion_difference
