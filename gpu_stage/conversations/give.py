"""Export: the answers of a run, or of a training set, as lines of another project's format.

In: a run's directory, or a set's. Out: JSON Lines, one line an answer, under the final name only
when complete; and how many answers were left out, by reason. Invariant: a row of a set is written
once. Memory: one batch of rows, and for a set 130 bytes for each sample that it has of one run.
Order: as the completions lie.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import ConfigError, InputError
from gpu_stage.conversations.answered import Answered, CannotCarry, Ids
from gpu_stage.conversations.formats import FORMATS
from gpu_stage.files import whole_file
from gpu_stage.marks import check_made_alike
from gpu_stage.merge.rows import conversation_of
from gpu_stage.merge.settings import FIDELITIES
from gpu_stage.part_rows import read_rows
from gpu_stage.runs import open_run, row_count
from gpu_stage.samples import completion_parts, dataset_of, samples_of

COMPLETION_COLUMNS = [
    "prompt_id",
    "turn",
    "messages",
    "tools",
    "content",
    "reasoning",
    "tool_calls",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
]
SAMPLE_COLUMNS = ["prompt_id", "fidelity", "input_ids", "prompt_length"]
#: What is read of the samples when nobody needs their ids.
LIGHT_COLUMNS = ["prompt_id", "fidelity"]


@dataclass(frozen=True)
class Export:
    """What to write."""

    #: A run's directory or run file, or a set's directory.
    source: Path
    format: str
    out: Path
    #: Only answers whose ids are known this well; empty: all that are not rejected.
    fidelity: Collection[str] = ()
    #: Of a set, which side.
    side: str = "train"


@dataclass
class Exported:
    """What came of it: rows read = written + left out."""

    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def export_conversations(asked: Export) -> Exported:
    """Write the file.

    Raises:
        ConfigError: the file is there, format or fidelity is unknown, or a run is not where it was.
        InputError: the format or the filter needs samples, and there are none, or ids that were
            not all made alike.
    """
    if asked.format not in FORMATS:
        raise ConfigError(f"--format {asked.format}: known are {', '.join(sorted(FORMATS))}")
    for name in asked.fidelity:
        if name not in FIDELITIES:
            raise ConfigError(f"--fidelity {name}: known are {', '.join(FIDELITIES)}")
    runs, done = _runs(asked), Exported()
    if FORMATS[asked.format].needs_ids:
        check_made_alike({at: [samples_of(at, part) for part in _parts(at)] for at, _ in runs})
    with whole_file(asked.out) as file:
        for directory, run in runs:
            chosen = None if run is None else _of_set(asked, run)
            for part in _parts(directory):
                wanted = None if chosen is None else chosen[dataset_of(part)]
                for row in _rows(directory, part, asked):
                    line = _line(row, asked, wanted, done)
                    if line is not None:
                        file.write(line + "\n")
    return done


def _runs(asked: Export) -> list[tuple[Path, str | None]]:
    """The directory of each run, with its name in the set; None: all of the run is asked for."""
    record = asked.source / "set.json"
    if not record.exists():
        return [(open_run(asked.source).directory, None)]
    listed = json.loads(record.read_bytes())["runs"]
    found = [(asked.source / one["directory"], one["run"]) for one in listed]
    for directory, run in found:
        if not directory.is_dir():
            raise ConfigError(
                f"{asked.source}: its run {run} is not at {directory} any more; move it back, or "
                "export the run itself"
            )
    return found


def _of_set(asked: Export, run: str) -> Mapping[str, set[str]]:
    """The prompts of a run that are on the chosen side of a set, by dataset."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((asked.source / asked.side).glob("part-*.parquet")):
        for prompt_id, of, dataset in read_rows(path, ["prompt_id", "run", "dataset"]):
            if of == run:
                found[dataset].add(prompt_id)
    return found


def _parts(directory: Path) -> list[Path]:
    parts = completion_parts(directory)
    if not parts:
        raise InputError(f"{directory}: no completions there; is it a run's or a set's directory?")
    return parts


def _rows(
    directory: Path, part: Path, asked: Export
) -> Iterator[tuple[Sequence[Any], Sequence[Any] | None]]:
    """The completions of a part with their samples, where there are some."""
    needs_ids = FORMATS[asked.format].needs_ids
    columns = SAMPLE_COLUMNS if needs_ids else LIGHT_COLUMNS
    completions, samples = read_rows(part, COMPLETION_COLUMNS), samples_of(directory, part)
    if samples.exists() and row_count(samples) == row_count(part):
        yield from zip(completions, read_rows(samples, columns), strict=True)
    elif needs_ids or asked.fidelity:
        raise InputError(
            f"{part}: has no samples of its rows, and "
            f"{'the format' if needs_ids else '--fidelity'} needs them; run "
            f"`gpu-stage tokens {directory}` first"
        )
    else:
        yield from ((completion, None) for completion in completions)


def _line(
    row: tuple[Sequence[Any], Sequence[Any] | None],
    asked: Export,
    wanted: set[str] | None,
    done: Exported,
) -> str | None:
    completion, sample = row
    try:
        if wanted is not None:
            if completion[0] not in wanted:
                raise CannotCarry("not in the set")
            wanted.remove(completion[0])
        if sample and not _known(sample[1], asked.fidelity):
            raise CannotCarry(f"fidelity: {sample[1]}")
        line = json.dumps(FORMATS[asked.format].write(_answered(completion, sample)))
    except CannotCarry as reason:
        done.left_out[str(reason)] += 1
        return None
    done.written += 1
    return line


def _known(fidelity: str, chosen: Collection[str]) -> bool:
    return fidelity in chosen if chosen else fidelity != "rejected"


def _answered(completion: Sequence[Any], sample: Sequence[Any] | None) -> Answered:
    row = dict(zip(COMPLETION_COLUMNS, completion, strict=True))
    messages, ids = json.loads(row["messages"]), None
    if sample and len(sample) > len(LIGHT_COLUMNS):
        start = sample[SAMPLE_COLUMNS.index("prompt_length")]
        ids = Ids(sample[2][:start], sample[2][start:], sample[1])
    counts = {name: row[name] for name in ("prompt_tokens", "completion_tokens")}
    return Answered(
        messages=messages,
        content=row["content"],
        reasoning=row["reasoning"],
        tool_calls=json.loads(row["tool_calls"] or "[]"),
        tools=json.loads(row["tools"]) if row["tools"] else None,
        finish_reason=row["finish_reason"],
        turn=row["turn"],
        prompt_id=row["prompt_id"],
        conversation=f"{conversation_of(messages):016x}",
        ids=ids,
        usage=counts if None not in counts.values() else None,
    )
