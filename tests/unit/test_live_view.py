"""The live view says what matters, on 80 columns."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fleet.endpoint_counts import endpoint_counts
from fleet.ledger import Ledger
from fleet.snapshot import Snapshot
from fleet.worker_counts import WorkerCounts
from producer.live_view import Growth, live_view


def picture(snapshot: Snapshot, growth: Growth = Growth(), width: int = 80) -> list[str]:
    """The lines of the view on a terminal of that width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(live_view("kimi", snapshot, growth))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def snapshot(ledger: Ledger) -> Snapshot:
    """Eight datasets of ten million tokens, two thousand in flight, forty workers."""
    for number in range(1, 9):
        ledger.open_dataset(f"B{number}", 20_000, 10_000_000, 4096)
    plain = ledger.snapshot()
    datasets = [
        replace(d, done=5_000, tokens=2_500_000, failed=7, spent_usd=12.34) for d in plain.datasets
    ]
    fields = {
        "chutes/int4|asked": "40000",
        "chutes/int4|done": "39900",
        "chutes/int4|limit": "1700",
    }
    fields |= {"chutes/int4|last": "The server failed: " + "x" * 200}
    workers = [WorkerCounts(f"host-{n}:17:abcdef", 0.2, 7200, 50, 49, 900) for n in range(39)]
    return replace(
        plain,
        datasets=datasets,
        spent_usd=98.72,
        cap_usd=100.0,
        in_flight=1998,
        limit=2000,
        errors={"server failed": 1234, "rate limited": 17},
        last_errors={"server failed": "Internal\nServer Error " * 20},
        endpoints=endpoint_counts(fields, {"chutes/int4"}),
        workers=[*workers, WorkerCounts("host-40:17:abcdef", 25.0, 7200, 50, 0, 2)],
    )


def test_it_fits_80_columns_and_one_screen(snapshot: Snapshot) -> None:
    """Eight datasets, forty workers, long messages: no line wraps, no heading is cut."""
    lines = picture(snapshot)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    heading = next(line for line in lines if line.strip().startswith("dataset"))
    assert heading.split() == ["dataset", "tokens", "answers", "spent", "left"]


def test_a_dataset_is_shown_against_its_budget_with_its_time_left(snapshot: Snapshot) -> None:
    """A quarter of the budget at 1,000 tokens a second: two hours for the rest."""
    growth = Growth(datasets={"B1": 1000.0})
    row = next(line for line in picture(snapshot, growth) if line.strip().startswith("B1"))
    assert "25 %" in row
    assert "2.5M/10.0M" in row
    assert "5,000 ✗7" in row
    assert "$12.34" in row
    assert row.rstrip().endswith("2 h 5 min")


def test_what_stands_still_is_named(snapshot: Snapshot) -> None:
    """The silent worker comes first; the commonest error comes with its message."""
    text = "\n".join(picture(snapshot))
    first = text.split("40 workers, ")[1].splitlines()[1]
    assert "host-40" in first
    assert "silent for 25 s" in first
    assert "1,234 server failed  Internal Server Error" in text
    assert "1,998 in flight of 2,000" in text


def test_a_paused_run_says_why_above_all(snapshot: Snapshot) -> None:
    """The first line is what its user has to know."""
    paused = replace(snapshot, paused={"kind": "out of credits", "reason": "0.01 USD are left"})
    assert picture(paused)[0] == "kimi: PAUSED (out of credits): 0.01 USD are left"
