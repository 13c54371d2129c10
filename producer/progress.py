"""How a run stands, in words: its state, its money, a line, tables. Pure."""

import textwrap
import time

from rich.box import SIMPLE
from rich.table import Table

from fleet.endpoint_counts import EndpointCounts
from fleet.snapshot import DatasetCounts, Snapshot
from producer.forecast import duration, forecast


def money(usd: float) -> str:
    if usd >= 1 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.4f}" if usd >= 0.01 else f"${usd:.6f}"


def state(snapshot: Snapshot) -> str:
    """One word, or the reason, for what the run is doing."""
    if snapshot.paused:
        return f"PAUSED ({snapshot.paused['kind']}): {snapshot.paused['reason']}"
    if snapshot.breaker_open:
        reasons = [
            textwrap.shorten(f"{e.tag}: {e.last_error}", 100, placeholder=" …")
            for e in snapshot.endpoints
            if e.circuit_open
        ]
        return f"BREAKER OPEN, probing every few seconds: {'; '.join(reasons)}"
    if snapshot.cap_reached:
        return "cap reached"
    if has_ended(snapshot):
        return "ended"
    return "running" if snapshot.workers else "nobody works on it"


def has_ended(snapshot: Snapshot) -> bool:
    """Nothing more is bought of any dataset."""
    return all(map(_ended, snapshot.datasets))


def _ended(dataset: DatasetCounts) -> bool:
    """Nothing more is bought of it, as far as the ledger knows."""
    through = dataset.done + dataset.failed >= dataset.prompts
    return through or dataset.cancelled or dataset.ended


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


def table(snapshot: Snapshot) -> Table:
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
    shown.caption_justify = "left"
    shown.caption = (
        f"{snapshot.in_flight} in flight, limit {snapshot.limit}, {len(snapshot.workers)} workers"
        f" · {snapshot.backlog} not yet on disk\n" + "\n".join(money_lines(snapshot))
    )
    if snapshot.errors:
        errors = sorted(snapshot.errors.items(), key=lambda item: -item[1])
        shown.caption += "\n" + ", ".join(f"{count} {kind}" for kind, count in errors[:6])
    return shown


def money_lines(snapshot: Snapshot) -> list[str]:
    """What is spent, held and left, and what that leads to."""
    spent = money(snapshot.spent_usd) + (
        f" of {money(snapshot.cap_usd)} spent" if snapshot.cap_usd else " spent"
    )
    parts = [spent, f"{money(snapshot.reserved_usd)} reserved"]
    if snapshot.unconfirmed_usd:
        parts.append(f"{money(snapshot.unconfirmed_usd)} unconfirmed")
    if snapshot.balance:
        left, age_s = snapshot.balance["remaining_usd"], time.time() - snapshot.balance["at"]
        known = "unknown (the key has no limit)" if left is None else money(left)
        parts.append(f"balance {known}" + (f", {duration(age_s)} ago" if age_s > 60 else ""))
    lines = [" · ".join(parts)]
    told = forecast(snapshot)
    if told.total_usd is not None:
        ends = [f"projected {money(told.total_usd)} in all"]
        if told.usd_per_s and told.done_in_s:
            ends.append(f"{money(told.usd_per_s * 3600)} an hour")
            ends.append(f"done in {duration(told.done_in_s)}")
        if told.money_ends_in_s is not None:
            ends.append(f"BUT the {told.money_ends_by} ends in {duration(told.money_ends_in_s)}")
        lines.append(" · ".join(ends))
    return lines


def endpoint_table(snapshot: Snapshot) -> Table:
    """Who served what, how fast and how well; fits 80 columns."""
    shown = Table(title="endpoints", title_justify="left", box=SIMPLE, pad_edge=False)
    shown.add_column("endpoint", no_wrap=True)
    for column in ("in flight", "done", "spent", "p50", "p95", "errors"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for e in snapshot.endpoints:
        if not (e.asked or e.done or e.failures or e.allowed):
            continue
        shown.add_row(
            e.tag,
            f"{e.in_flight}/{e.limit}" if e.allowed else str(e.in_flight),
            f"{e.done:,}",
            money(e.spent_usd),
            f"{e.latency_p50_s:.1f} s" if e.done else "–",
            f"{e.latency_p95_s:.1f} s" if e.done else "–",
            f"{100 * e.error_rate:.1f} %",
            endpoint_state(e),
        )
    shown.caption_justify = "left"
    shown.caption = "\n".join(
        textwrap.shorten(f"{e.tag}: {e.last_error}", 72, placeholder=" …")
        for e in snapshot.endpoints
        if e.last_error
    )
    return shown


def endpoint_state(endpoint: EndpointCounts) -> str:
    """In a few words, what keeps it from being asked as usual."""
    if endpoint.wrong:
        return f"{endpoint.wrong} wrong provider"
    if not endpoint.allowed:
        return endpoint.off or "not asked"
    if not endpoint.circuit_open:
        return ""
    return f"rests {endpoint.resting_s:.0f} s" if endpoint.resting_s else "probed"
