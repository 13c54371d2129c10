"""`producer providers`: who serves a model, at what price, and who of them may answer."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from producer.console import err, out
from producer.endpoints import Endpoint
from producer.policy import Needs, Verdict


def show_providers(model: str, verdicts: Sequence[Verdict], needs: Needs, as_json: bool) -> None:
    """Print every endpoint with its verdict, the cheapest first."""
    if as_json:
        read_at = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"model": model, "read_at": read_at, "note": needs.note}
        print(json.dumps(found | {"endpoints": [v.record() for v in verdicts]}, indent=2))
        return
    if needs.note:
        err.print(needs.note, style="yellow", highlight=False, soft_wrap=True)
    out.print(endpoint_table(verdicts))


def endpoint_table(verdicts: Sequence[Verdict]) -> Group:
    """Fits 80 columns: the numbers, then each provider's name and verdict.

    Prices in US dollars per million tokens; sizes in tokens.
    """
    shown = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("")
    shown.add_column("endpoint", overflow="fold")
    shown.add_column("weights", no_wrap=True)
    for column in ("in", "out", "context", "longest", "status", "uptime", "tok/s"):
        shown.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    for verdict in verdicts:
        mark, style = ("✓", None) if verdict.kept else ("✗", "dim")
        shown.add_row(mark, *_cells(verdict.endpoint), style=style)
    return Group(shown, *(_said(verdict) for verdict in verdicts))


def _said(verdict: Verdict) -> Text:
    said = "kept" if verdict.kept else "; ".join(verdict.reasons)
    endpoint = verdict.endpoint
    return Text(f" {endpoint.tag or '?'} ({endpoint.provider_name or '?'}): {said}")


def _cells(endpoint: Endpoint) -> list[str]:
    return [
        endpoint.tag or "?",
        endpoint.quantization,
        _price(endpoint.prompt_price),
        _price(endpoint.completion_price),
        _thousands(endpoint.context_length),
        _thousands(endpoint.max_completion_tokens),
        str(endpoint.status),
        "–" if endpoint.uptime is None else f"{endpoint.uptime:.1f}%",
        "–" if endpoint.tokens_per_s is None else f"{endpoint.tokens_per_s:.0f}",
    ]


def _price(usd: float | None) -> str:
    return "–" if usd is None else f"{1e6 * usd:.2f}"


def _thousands(tokens: int | None) -> str:
    return "–" if tokens is None else f"{tokens / 1024:.0f}k"
