"""Runs as a test wants them: completions and their samples, written through the schemas."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.records import prompt_id
from fleet.schemas import COMPLETIONS
from gpu_stage.marks import Marks
from gpu_stage.samples import SAMPLES

MODEL = "author/model"
THEN = datetime(2026, 12, 1, tzinfo=UTC)
#: All samples of the kit are of one tokenizer.
MARKED = SAMPLES.with_metadata(Marks("recipe", "tokenizer").metadata())


@dataclass(frozen=True)
class Row:
    """A completion and its sample; what is not said has a value that every filter takes."""

    text: str = "What is it?"
    #: Messages instead of `text`.
    messages: Sequence[dict[str, Any]] | None = None
    turn: int = 0
    tools: list[dict[str, Any]] | None = None
    content: str | None = "It is."
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    finish_reason: str | None = "stop"
    provider: str | None = "Alpha"
    fidelity: str = "counted"
    prompt_ids: Sequence[int] = (1, 2, 3)
    completion_ids: Sequence[int] = (4, 5, 6)
    #: Spans instead of all of the completion.
    spans: Sequence[tuple[int, int]] | None = None
    cost_usd: float | None = 0.001
    #: Tells equal prompts apart, as another sampling does.
    sampling: str = ""
    response: dict[str, Any] = field(default_factory=dict)

    def sent(self) -> list[dict[str, Any]]:
        return list(self.messages or [{"role": "user", "content": self.text}])

    @property
    def prompt_id(self) -> str:
        return prompt_id(MODEL, {"is": self.sampling}, self.sent(), self.tools)

    def completion(self) -> dict[str, Any]:
        return {
            "prompt_id": self.prompt_id,
            "turn": self.turn,
            "messages": json.dumps(self.sent()),
            "tools": json.dumps(self.tools) if self.tools else None,
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": json.dumps(self.tool_calls) if self.tool_calls else None,
            "finish_reason": self.finish_reason,
            "provider": self.provider,
            "cost_usd": self.cost_usd,
            "attempts": 1,
            "latency_s": 1.0,
            "requested_at": THEN,
            "completed_at": THEN,
            "worker": "w",
            "response": json.dumps(self.response),
        }

    def sample(self) -> dict[str, Any]:
        start, end = len(self.prompt_ids), len(self.prompt_ids) + len(self.completion_ids)
        spans = [(start, end)] if self.spans is None else self.spans
        return {
            "prompt_id": self.prompt_id,
            "provider": self.provider,
            "input_ids": [*self.prompt_ids, *self.completion_ids],
            "loss_spans": [{"start": a, "end": b} for a, b in spans],
            "prompt_length": start,
            "completion_length": end - start,
            "fidelity": self.fidelity,
            "finish_reason": self.finish_reason,
            "cost_usd": self.cost_usd,
        }


def write_run(directory: Path, datasets: dict[str, Sequence[Row]], rows_a_part: int = 100) -> Path:
    """A run's directory with its completions and samples."""
    for dataset, rows in datasets.items():
        for number, start in enumerate(range(0, max(len(rows), 1), rows_a_part)):
            some = rows[start : start + rows_a_part]
            name = f"dataset={dataset}/part-{number:04}.parquet"
            write(directory / "completions" / name, [r.completion() for r in some], COMPLETIONS)
            write(directory / "samples" / name, [r.sample() for r in some], MARKED)
    return directory


def write(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=schema), path)


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder's part files, in order."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        rows += pq.ParquetFile(path).read().to_pylist()
    return rows
