"""What a pilot measured: each endpoint and each dataset, from the answers on disk."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich.box import SIMPLE
from rich.table import Table

from fleet.run_config import RunConfig
from fleet.schemas import COMPLETIONS
from producer.console import out
from producer.progress import money

COLUMNS = (
    "endpoint prompt_tokens completion_tokens cost_usd finish_reason latency_s attempts".split()
)


def show_pilot(config: RunConfig) -> None:
    """Print both tables."""
    answers = read_answers(config)
    for by in ("endpoint", "dataset"):
        out.print(measures_table(by, measure(answers, by)))


def read_answers(config: RunConfig) -> pa.Table:
    """The answers on disk, without their texts."""
    fields = [COMPLETIONS.field(name) for name in COLUMNS] + [pa.field("dataset", pa.string())]
    schema = pa.schema(fields)
    files = sorted((config.directory / "completions").glob("*/part-*.parquet"))
    if not files:
        return schema.empty_table()
    return ds.dataset(files, schema=schema, partitioning="hive", format="parquet").to_table()


def measure(answers: pa.Table, by: str) -> list[dict[str, Any]]:
    """Sizes, cost, truncation and latency of the answers, grouped by a column."""
    return [
        _measure(str(name), answers.filter(pc.equal(answers[by], name)))
        for name in sorted(set(answers[by].to_pylist()), key=str)
    ]


def _measure(name: str, answers: pa.Table) -> dict[str, Any]:
    tokens, cost = pc.sum(answers["completion_tokens"]).as_py() or 0, _sum(answers["cost_usd"])
    return {
        "name": name,
        "answers": answers.num_rows,
        "first_try": pc.sum(pc.equal(answers["attempts"], 1)).as_py() / answers.num_rows,
        "prompt_tokens": pc.mean(answers["prompt_tokens"]).as_py() or 0.0,
        "completion_tokens": tokens / answers.num_rows,
        "completion_tokens_p95": _quantile(answers["completion_tokens"], 0.95),
        "truncated": (pc.sum(pc.equal(answers["finish_reason"], "length")).as_py() or 0)
        / answers.num_rows,
        "latency_p50_s": _quantile(answers["latency_s"], 0.5),
        "latency_p95_s": _quantile(answers["latency_s"], 0.95),
        "cost_usd": cost,
        "usd_per_m_tokens": 1e6 * cost / tokens if tokens else 0.0,
    }


def _sum(column: pa.ChunkedArray) -> float:
    return float(pc.sum(column).as_py() or 0.0)


def _quantile(column: pa.ChunkedArray, q: float) -> float:
    return float(pc.quantile(column, q=q)[0].as_py() or 0.0)


def measures_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Fits 100 columns."""
    shown = Table(box=SIMPLE, pad_edge=False)
    shown.add_column(title, no_wrap=True)
    for column in (
        "answers",
        "1st try",
        "in",
        "out",
        "p95",
        "cut",
        "p50",
        "p95",
        "cost",
        "$/M out",
    ):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["name"],
            f"{row['answers']:,}",
            f"{100 * row['first_try']:.0f} %",
            f"{row['prompt_tokens']:.0f}",
            f"{row['completion_tokens']:.0f}",
            f"{row['completion_tokens_p95']:.0f}",
            f"{100 * row['truncated']:.0f} %",
            f"{row['latency_p50_s']:.0f} s",
            f"{row['latency_p95_s']:.0f} s",
            money(row["cost_usd"]),
            f"{row['usd_per_m_tokens']:.2f}",
        )
    return shown
