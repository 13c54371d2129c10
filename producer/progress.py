"""How a run stands, for a person: a live table on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fleet.snapshot import Snapshot
from producer.rate import Rate

LINE_INTERVAL_S = 5.0


class Progress:
    """Shows one snapshot after another."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._requests, self._tokens = Rate(), Rate()
        self._next_line_at = 0.0

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        requests, tokens = (
            self._requests.update(snapshot.done),
            self._tokens.update(snapshot.tokens),
        )
        if self._live:
            self._live.update(table(snapshot, requests, tokens))
        elif time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + LINE_INTERVAL_S
            self._console.print(line(snapshot, requests, tokens), highlight=False, soft_wrap=True)


def money(usd: float) -> str:
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${usd:.6f}"


def state(snapshot: Snapshot) -> str:
    """One word, or the reason, for what the run is doing."""
    if snapshot.paused:
        return f"PAUSED ({snapshot.paused['kind']}): {snapshot.paused['reason']}"
    if snapshot.breaker_open:
        last = max(snapshot.errors, key=lambda kind: snapshot.errors[kind], default="")
        return f"BREAKER OPEN, probing: {snapshot.last_errors.get(last, '')}"
    if snapshot.cap_reached:
        return "cap reached"
    return "running" if snapshot.workers else "no worker yet"


def line(snapshot: Snapshot, requests_per_s: float, tokens_per_s: float) -> str:
    """The run on one line."""
    datasets = "  ".join(
        f"{d.name} {d.done}/{d.prompts}" + (f" {d.failed} failed" if d.failed else "")
        for d in snapshot.datasets
    )
    return (
        f"{datasets} | {snapshot.in_flight} in flight (limit {snapshot.limit})"
        f" | {requests_per_s:.1f} req/s {tokens_per_s:,.0f} tok/s"
        f" | {money(snapshot.spent_usd)} | {state(snapshot)}"
    )


def table(snapshot: Snapshot, requests_per_s: float, tokens_per_s: float) -> Table:
    """The run as a table that fits 80 columns."""
    shown = Table(title=state(snapshot), title_justify="left", expand=False)
    for column in (
        "dataset",
        "done",
        "prompts",
        "failed",
        "in flight",
        "tokens",
        "budget",
        "spent",
    ):
        shown.add_column(column, justify="left" if column == "dataset" else "right")
    for d in snapshot.datasets:
        budget = f"{d.budget_tokens:,}" if d.budget_tokens else "–"
        counts = (d.done, d.prompts, d.failed, d.in_flight, d.tokens)
        cells = [f"{value:,}" for value in counts]
        name = f"{d.name} (cancelled)" if d.cancelled else d.name
        shown.add_row(name, *cells, budget, money(d.spent_usd))
    cap = f" of {money(snapshot.cap_usd)}" if snapshot.cap_usd else ""
    shown.caption_justify = "left"
    shown.caption = (
        f"{snapshot.in_flight} in flight, limit {snapshot.limit}, {snapshot.workers} workers"
        f" · {requests_per_s:.1f} req/s · {tokens_per_s:,.0f} tok/s\n"
        f"{money(snapshot.spent_usd)}{cap} spent, {money(snapshot.reserved_usd)} reserved"
        f" · {snapshot.backlog} not yet on disk"
    )
    if snapshot.errors:
        errors = sorted(snapshot.errors.items(), key=lambda item: -item[1])
        shown.caption += "\n" + ", ".join(f"{count} {kind}" for kind, count in errors[:6])
    return shown
