"""`card.md`: the set for a person. In: the record of `set.json`. Out: Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Object = dict[str, Any]

HEADER = """# {name}

A training set for an EAGLE-3 draft: samples of {models} as token ids, with the tokens that the
target wrote marked for the loss.

"""
SIDE_COLUMNS = ("conversations", "samples", "tokens", "loss tokens", "density", "US dollars")


def card(name: str, record: Object) -> str:
    """The card of a set."""
    models = sorted({run["model"] for run in record["runs"] if run["model"]})
    sections = [
        HEADER.format(name=name, models=", ".join(models) or "one target").rstrip(),
        _sizes(record),
        _dropped(record),
        _providers(record),
        _evaluation(record),
        _runs(record),
        _files(record),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _sizes(record: Object) -> str:
    rows = [
        (dataset, side, *_side(found[side]))
        for dataset, found in [*record["datasets"].items(), ("**all**", record["overall"])]
        for side in ("train", "heldout")
    ]
    share, seed = record["settings"]["heldout_share"], record["settings"]["seed"]
    note = (
        f"Held out: {share:.2%} of the conversations, by a hash of their first messages, so that "
        f"a set that grows never moves one. Seed of order and caps: {seed}. All that was read "
        f"cost {record['overall']['read']['cost_usd']:.4f} US dollars."
    )
    return f"## Contents\n\n{_table(('dataset', 'side', *SIDE_COLUMNS), rows)}\n\n{note}"


def _side(total: Object) -> tuple[str, ...]:
    density = total["mask_density"]
    return (
        f"{total['conversations']:,}",
        f"{total['rows']:,}",
        f"{total['tokens']:,}",
        f"{total['loss_tokens']:,}",
        "–" if density is None else f"{density:.3f}",
        f"{total['cost_usd']:.4f}",
    )


def _dropped(record: Object) -> str:
    rows = [
        (dataset, f"{found['read']['rows']:,}", reason, f"{count:,}")
        for dataset, found in [*record["datasets"].items(), ("**all**", record["overall"])]
        for reason, count in (found["dropped"] or {"–": 0}).items()
    ]
    columns = ("dataset", "rows read", "reason", "rows")
    note = "Rows read = rows kept + rows dropped; every dropped row is in `dropped.parquet`."
    return f"## Left out\n\n{_table(columns, rows)}\n\n{note}"


def _providers(record: Object) -> str:
    rows = [
        (
            name,
            f"{found['rows']:,}",
            f"{found['loss_tokens']:,}",
            f"{found['cost_usd']:.4f}",
            f"{found['cost_usd'] / found['loss_tokens'] * 1e6:.3f}",
            ", ".join(f"{word} {count:,}" for word, count in found["fidelity"].items()),
            ", ".join(f"{run['audit'][name]}" for run in record["runs"] if name in run["audit"])
            or "–",
        )
        for name, found in record["providers"].items()
    ]
    columns = ("provider", "samples", "loss tokens", "US dollars", "per million", "ids", "audit")
    return f"## Providers\n\n{_table(columns, rows)}"


def _evaluation(record: Object) -> str:
    rows = [
        (name, f"{found['prompts']:,}", f"{found['rows_matched']:,}")
        for name, found in record["evaluation_sets"].items()
    ]
    if not rows:
        return "## Evaluation sets\n\nNone was named, so none was looked for."
    columns = ("set", "prompts", "rows that overlapped, all dropped")
    return f"## Evaluation sets\n\n{_table(columns, rows)}"


def _runs(record: Object) -> str:
    rows = [
        (run["run"], run["model"] or "–", part["path"], f"{part['rows']:,}", part["sha256"])
        for run in record["runs"]
        for part in run["samples"]
    ]
    columns = ("run", "model", "part", "rows", "SHA-256")
    return f"## Made from\n\n{_table(columns, rows)}"


def _files(record: Object) -> str:
    return f"## Files\n\n{_table(('file', 'SHA-256'), record['files'].items())}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
