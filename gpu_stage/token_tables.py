"""The report on a run's samples for a person: tables on the terminal."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpu_stage.offset_notes import signed
from gpu_stage.token_run import Made
from gpu_stage.tokenise import Outcome
from tokens import Fidelity

#: Reasons and differences that a line has room for.
SHOWN = 3
TEXT_CHARS = 50

Record = dict[str, Any]


def show_made(console: Console, made: Made) -> None:
    """What became of the parts."""
    counted = [f"{made.outcomes[outcome]:,} {outcome}" for outcome in Outcome]
    counted.append(f"{len(made.failed):,} failed")
    console.print(
        f"Parts: {', '.join(counted)}. {made.rows:,} completions, {made.tokens:,} tokens.",
        highlight=False,
    )
    for part, why in made.failed.items():
        text = why if str(part) in why else f"{part}: {why}"
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)


def show_report(console: Console, report: Record) -> None:
    """Fidelity, differences, constants, examples."""
    console.print(_fidelity(report["groups"]))
    console.print(_differences(report["groups"]))
    for note in report["notes"]:
        console.print(note["sentence"], highlight=False, markup=False, soft_wrap=True)
    if any(group["worst"] for group in report["groups"]):
        console.print(_examples(report["groups"]))


def _fidelity(groups: list[Record]) -> Table:
    table = _table("dataset", "provider", right=("rows", "tokens", *Fidelity))
    table.add_column("rejected because")
    for group in groups:
        shares = [f"{group['fidelity'].get(name, 0) / group['rows']:.1%}" for name in Fidelity]
        table.add_row(
            *_names(group),
            f"{group['rows']:,}",
            f"{group['completion_tokens']:,}",
            *shares,
            _most(group["reasons"]),
        )
    return table


def _differences(groups: list[Record]) -> Table:
    """Billed minus found, the most frequent first."""
    table = _table("dataset", "provider", "prompt billed − found", "completion billed − found")
    for group in groups:
        sides = (group["prompt_differences"], group["completion_differences"])
        table.add_row(*_names(group), *(_shares(side) for side in sides))
    return table


def _examples(groups: list[Record]) -> Table:
    table = _table("worst", "provider", right=("prompt", "completion"))
    table.add_column("text")
    for group in groups:
        for row in group["worst"]:
            counts = (
                f"{row[f'{side}_billed']}/{row[f'{side}_found']}"
                for side in ("prompt", "completion")
            )
            text = " ".join(row["text"].split())[:TEXT_CHARS]
            table.add_row(row["prompt_id"], _names(group)[1], *counts, escape(text))
    return table


def _table(*left: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _names(group: Record) -> tuple[str, str]:
    return escape(group["dataset"]), escape(group["provider"] or "unknown")


def _most(reasons: dict[str, int]) -> str:
    named = [f"{reason} {rows:,}" for reason, rows in list(reasons.items())[:SHOWN]]
    return ", ".join(named) + (", …" if len(reasons) > SHOWN else "")


def _shares(differences: dict[str, int]) -> str:
    total = sum(differences.values())
    most = sorted(differences.items(), key=lambda item: -item[1])
    named = [f"{_sign(off)}: {rows / total:.0%}" for off, rows in most[:SHOWN]]
    return "  ".join(named) + ("  …" if len(most) > SHOWN else "")


def _sign(difference: str) -> str:
    """`less` and `more` are words."""
    return difference if difference.isalpha() else signed(int(difference))
