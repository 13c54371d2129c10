"""What a pilot measured, of each endpoint and each dataset: success, sizes, cost, latency, counts.

In: the answers on disk, the ledger's counters, the target's tokenizer if there is one. It prints.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.table import Table

from fleet.run_config import RunConfig
from fleet.snapshot import Snapshot
from producer.answer_sizes import read_answers
from producer.console import err, out
from producer.count_check import Agreement, check_counts
from producer.progress import money
from tokens import FolderError, Renderer, load

GROUPS = ("endpoint", "dataset")


@dataclass(frozen=True)
class Outside:
    """What the answers themselves do not say, by name of the endpoint or dataset."""

    #: Requests that brought an answer, as a share.
    success: Mapping[str, float]
    #: None: there is no tokenizer to count with.
    agreements: Mapping[str, Agreement] | None


def show_pilot(config: RunConfig, snapshot: Snapshot) -> None:
    """Print both tables, and what they need explained."""
    answers, renderer = read_answers(config), _renderer(config)
    agreements = check_counts(config, renderer) if renderer else {}
    for by in GROUPS:
        outside = Outside(successes(snapshot)[by], agreements.get(by))
        out.print(measures_table(by, measure(answers, by, set(outside.success)), outside))
    for endpoint in snapshot.endpoints:
        if endpoint.asked and endpoint.last_error:
            text = f"{endpoint.tag}: {endpoint.error_rate:.0%} failed: {endpoint.last_error}"
            out.print(text, highlight=False, soft_wrap=True)
    for name, agreement in agreements.get("endpoint", {}).items():
        for sentence in agreement.constants():
            out.print(f"{name}: {sentence}: see docs/tokens.md", highlight=False, soft_wrap=True)
    if (missing := sum(d.done for d in snapshot.datasets) - answers.num_rows) > 0:
        err.print(f"{missing:,} answers are not on this disk yet, and not in these tables.")


def _renderer(config: RunConfig) -> Renderer | None:
    if config.target is None:
        err.print("Counts are not checked: run.target names no folder with a tokenizer.")
        return None
    try:
        return load(config.target)
    except FolderError as error:
        err.print(f"Counts are not checked: {error}", highlight=False, soft_wrap=True)
        return None


def successes(snapshot: Snapshot) -> dict[str, dict[str, float]]:
    """Answers among the requests that came back; of a dataset, among the prompts that ended."""
    return {
        "endpoint": {e.tag: 1 - e.error_rate for e in snapshot.endpoints if e.asked},
        "dataset": {d.name: d.done / max(1, d.done + d.failed) for d in snapshot.datasets},
    }


def measure(answers: pa.Table, by: str, asked: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """Sizes, cost, truncation and latency of the answers, grouped by a column.

    Args:
        asked: names that have a row though no answer came from there.
    """
    return [
        _measure(name, answers.filter(pc.equal(answers[by].cast(pa.string()), name)))
        for name in sorted(asked | set(map(str, answers[by].to_pylist())))
    ]


def _measure(name: str, answers: pa.Table) -> dict[str, Any]:
    tokens, cost = pc.sum(answers["completion_tokens"]).as_py() or 0, _sum(answers["cost_usd"])
    return {
        "name": name,
        "answers": answers.num_rows,
        "prompt_tokens": pc.mean(answers["prompt_tokens"]).as_py() or 0.0,
        "completion_tokens": tokens / max(1, answers.num_rows),
        "completion_tokens_p95": _quantile(answers["completion_tokens"], 0.95),
        "truncated": (pc.sum(pc.equal(answers["finish_reason"], "length")).as_py() or 0)
        / max(1, answers.num_rows),
        "latency_p50_s": _quantile(answers["latency_s"], 0.5),
        "latency_p95_s": _quantile(answers["latency_s"], 0.95),
        "cost_usd": cost,
        "usd_per_m_tokens": 1e6 * cost / tokens if tokens else 0.0,
    }


def _sum(column: pa.ChunkedArray) -> float:
    return float(pc.sum(column).as_py() or 0.0)


def _quantile(column: pa.ChunkedArray, q: float) -> float:
    return float(pc.quantile(column, q=q)[0].as_py() or 0.0)


def measures_table(title: str, rows: list[dict[str, Any]], outside: Outside) -> Table:
    """Fits 80 columns. Shares are in percent, latencies in seconds."""
    shown = Table(box=SIMPLE, pad_edge=False, padding=0)
    shown.add_column(title, no_wrap=True, max_width=16)
    for column in ("n", "ok %", "in", "out", "p95", "cut %", "p50 s", "p95 s", "off %"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("cost", justify="right", no_wrap=True)
    shown.add_column("$/M", justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["name"],
            f"{row['answers']:,}",
            f"{100 * outside.success.get(row['name'], 0.0):.0f}",
            f"{row['prompt_tokens']:.0f}",
            f"{row['completion_tokens']:.0f}",
            f"{row['completion_tokens_p95']:.0f}",
            f"{100 * row['truncated']:.0f}",
            f"{row['latency_p50_s']:.1f}",
            f"{row['latency_p95_s']:.1f}",
            _off(outside.agreements, row["name"]),
            f"${row['cost_usd']:.4f}" if row["cost_usd"] < 1 else money(row["cost_usd"]),
            f"{row['usd_per_m_tokens']:.2f}",
        )
    return shown


def _off(agreements: Mapping[str, Agreement] | None, name: str) -> str:
    """Share of the answers whose counts are not those found."""
    agreement = (agreements or {}).get(name)
    if agreement is None or not agreement.compared:
        return "–"
    return f"{100 * agreement.off / agreement.compared:.0f}"
