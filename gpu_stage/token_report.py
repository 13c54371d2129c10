"""What became of a run's completions: the record that `samples/report.json` holds.

In: the samples on disk. Out: a JSON object, by dataset and provider: shares of fidelity, reasons,
differences of counts, the worst examples; constants by provider. It is made from the files alone,
so it tells of all parts, whoever made them.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fleet.run_config import RunConfig
from gpu_stage.offset_notes import Note, notes
from gpu_stage.samples import completion_parts, samples_of
from gpu_stage.tally import Example, Tally, tally
from tokens import Fidelity

Record = dict[str, Any]
#: Differences beyond this are counted together.
MOST_OFF = 10
#: Characters of an example's text.
HEAD_CHARS = 120
EXAMPLE = (
    *("prompt_id", "fidelity", "reason", "finish_reason"),
    *("prompt_found", "prompt_billed", "completion_found", "completion_billed"),
)


def make_report(config: RunConfig) -> Record:
    """Count the run's samples, and write the report beside them."""
    directory = config.directory
    parts = {samples_of(directory, part): part for part in completion_parts(directory)}
    tallies = tally(path for path in parts if path.exists())
    groups = [
        _group(dataset, provider, counted, parts)
        for (dataset, provider), counted in sorted(tallies.items(), key=lambda item: str(item[0]))
    ]
    record = {
        "rows": sum(group["rows"] for group in groups),
        "completion_tokens": sum(group["completion_tokens"] for group in groups),
        "fidelity": _summed(group["fidelity"] for group in groups),
        "groups": groups,
        "notes": [_note(note) for note in notes(tallies, config.tokens)],
    }
    _write(directory / "samples" / "report.json", record)
    return record


def _group(dataset: str, provider: str | None, tally: Tally, parts: Mapping[Path, Path]) -> Record:
    worst = sorted(tally.worst, reverse=True)
    return {
        "dataset": dataset,
        "provider": provider,
        "rows": tally.rows,
        "completion_tokens": tally.completion_tokens,
        "fidelity": {name: tally.fidelity[name] for name in Fidelity if tally.fidelity[name]},
        "reasons": dict(tally.reasons.most_common()),
        "prompt_differences": _histogram(tally.prompt),
        "completion_differences": _histogram(tally.completion),
        "worst": [_example(example, parts[example.part]) for example in worst],
    }


def _histogram(differences: Counter[int]) -> dict[str, int]:
    """Rows by difference; those far off under `less` and `more`."""
    near = {off: n for off, n in sorted(differences.items()) if abs(off) <= MOST_OFF}
    far = {
        "less": sum(n for off, n in differences.items() if off < -MOST_OFF),
        "more": sum(n for off, n in differences.items() if off > MOST_OFF),
    }
    return {str(off): n for off, n in near.items()} | {side: n for side, n in far.items() if n}


def _example(example: Example, completions: Path) -> Record:
    row = _row(example.part, example.row, EXAMPLE)
    text = _row(completions, example.row, ("reasoning", "content"))
    head = (text["reasoning"] or "") + (text["content"] or "")
    return {**row, "text": head[:HEAD_CHARS]}


def _row(path: Path, row: int, columns: Iterable[str]) -> Record:
    """One row of a Parquet file."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row < rows:
                table = file.read_row_group(group, columns=list(columns))
                found: Record = table.slice(row, 1).to_pylist()[0]
                return found
            row -= rows
    raise IndexError(f"{path} has no row {row}")


def _note(note: Note) -> Record:
    return {**asdict(note), "sentence": note.sentence}


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = sum((Counter(count) for count in counts), Counter[str]())
    return {name: total[name] for name in Fidelity if total[name]}


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
