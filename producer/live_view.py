"""The live view of a run: one picture made from one snapshot, readable at 80 columns.

In: a snapshot, the growth of its counts, what Redis uses. Out: something for Rich to draw. Pure.
Progress bars are against the token budget where a dataset has one, else against its prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleet.snapshot import DatasetCounts, Snapshot
from fleet.worker_counts import WorkerCounts
from producer.forecast import duration
from producer.progress import endpoint_table, money, money_lines, state

BAR_WIDTH = 14
#: Of 40 workers, those that are slowest or silent are worth a line.
MOST_WORKERS = 4
MOST_ERRORS = 4


@dataclass(frozen=True)
class Growth:
    """How fast a run goes, per second over the last minute."""

    requests: float = 0.0
    tokens: float = 0.0
    #: Tokens or prompts of each dataset, whichever its bar is in.
    datasets: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, float] = field(default_factory=dict)
    #: What Redis uses, and may use (0: no limit), in bytes.
    memory_bytes: tuple[int, int] = (0, 0)


def progress_of(dataset: DatasetCounts) -> tuple[float, float]:
    """What is done of a dataset, and what is to be done: completion tokens, else prompts."""
    if dataset.budget_tokens:
        return dataset.tokens, dataset.budget_tokens
    return dataset.done + dataset.failed, dataset.prompts


def live_view(run: str, snapshot: Snapshot, growth: Growth) -> RenderableType:
    """The whole picture."""
    parts: list[RenderableType] = [
        Text(f"{run}: {state(snapshot)}", style="bold"),
        *(Text(line) for line in money_lines(snapshot)),
        _datasets(snapshot.datasets, growth),
        _pace(snapshot, growth),
    ]
    if any(e.asked for e in snapshot.endpoints):
        parts.append(endpoint_table(snapshot))
    if snapshot.errors:
        parts.append(_errors(snapshot))
    if snapshot.workers:
        parts.append(_workers(snapshot.workers, growth))
    return Group(*parts)


def _datasets(datasets: Sequence[DatasetCounts], growth: Growth) -> Table:
    shown = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("dataset", no_wrap=True, max_width=13)
    shown.add_column("", width=BAR_WIDTH)
    for column in ("", "tokens", "answers", "spent", "left"):
        shown.add_column(column, justify="right", no_wrap=True)
    for dataset in datasets:
        done, whole = progress_of(dataset)
        shown.add_row(
            dataset.name,
            ProgressBar(total=max(whole, 1), completed=min(done, whole), width=BAR_WIDTH),
            f"{100 * done / whole:.0f} %" if whole else "–",
            _tokens(dataset),
            f"{dataset.done:,}" + (f" ✗{dataset.failed:,}" if dataset.failed else ""),
            money(dataset.spent_usd),
            _left(dataset, whole - done, growth.datasets.get(dataset.name, 0.0)),
        )
    return shown


def _tokens(dataset: DatasetCounts) -> str:
    bought = _short(dataset.tokens)
    return f"{bought}/{_short(dataset.budget_tokens)}" if dataset.budget_tokens else bought


def _left(dataset: DatasetCounts, rest: float, per_s: float) -> str:
    """Time to a dataset's end at its rate."""
    if dataset.cancelled:
        return "cancelled"
    if dataset.ended or rest <= 0:
        return "done"
    return duration(rest / per_s) if per_s > 0 else "–"


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _pace(snapshot: Snapshot, growth: Growth) -> Text:
    used, most = growth.memory_bytes
    memory = f"{used / 1e6:,.0f} MB" + (f" of {most / 1e6:,.0f}" if most else "")
    return Text(
        f"{snapshot.in_flight:,} in flight of {snapshot.limit:,} · {growth.requests:,.1f} req/s"
        f" · {_short(growth.tokens)} tokens/s\n"
        f"{snapshot.queued:,} queued, {snapshot.waiting:,} waiting ({snapshot.delayed:,} back off)"
        f" · {snapshot.backlog:,} not on disk · Redis {memory}"
    )


def _errors(snapshot: Snapshot) -> Text:
    """The commonest kinds, each with its last message on one line."""
    commonest = sorted(snapshot.errors.items(), key=lambda item: -item[1])[:MOST_ERRORS]
    text = Text(no_wrap=True, overflow="ellipsis")
    for kind, count in commonest:
        last = " ".join(snapshot.last_errors.get(kind, "").split())
        text.append(f"{count:,} {kind}", style="yellow").append(f"  {last}\n", style="dim")
    text.rstrip()
    return text


def _workers(workers: Sequence[WorkerCounts], growth: Growth) -> Text:
    """All of them on one line, then those that are silent or slowest."""
    rates = {w.name: growth.workers.get(w.name, 0.0) for w in workers}
    used, slots = sum(w.in_flight for w in workers), sum(w.capacity for w in workers)
    youngest, oldest = (duration(pick(w.age_s for w in workers)) for pick in (min, max))
    there = oldest if youngest == oldest else f"{youngest} to {oldest}"
    text = Text(f"{len(workers)} workers, {used:,} of {slots:,} slots used, there for {there}")
    for worker in sorted(workers, key=lambda w: (-round(w.silent_s), rates[w.name]))[:MOST_WORKERS]:
        silent = f" · silent for {worker.silent_s:.0f} s" if worker.silent_s > 5 else ""
        text.append(
            f"\n  {worker.name[:36]} · {rates[worker.name]:.1f} req/s"
            f" · {worker.in_flight} of {worker.capacity}{silent}",
            style="red" if silent else "dim",
        )
    return text
