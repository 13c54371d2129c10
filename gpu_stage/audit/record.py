"""`audit.json`: verdicts on providers, and all figures that they rest on.

In: evidence by provider, dataset and endpoint. Out: a record for programs, which `merge` reads, and
lines for people.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fleet import __version__
from fleet.errors import InputError
from gpu_stage.audit.choose import FIDELITIES
from gpu_stage.audit.run import Group, Measured, Subject
from gpu_stage.audit.verdict import ALPHA, Evidence, Verdict, tokens_to_see, verdict
from gpu_stage.claimed_file import claim, finish

NAME = "audit.json"
Object = dict[str, Any]


def make_record(subject: Subject, measured: Measured, tolerance: float) -> Object:
    """
    Args:
        tolerance: the drift that does not matter, in nats a token.

    Raises:
        InputError: no sample's ids are known.
    """
    if not measured.groups:
        raise InputError(
            f"{subject.run.directory}: no sample's ids are known ({', '.join(FIDELITIES)}), so "
            "nothing can be held against the target; `gpu-stage tokens` says why"
        )
    endpoints = _sums(measured, lambda group: (group.provider, group.endpoint))
    providers = _sums(measured, lambda group: (group.provider,))
    alpha = ALPHA / len(endpoints)
    verdicts = {
        names: verdict(one, alpha, tolerance, subject.rule.top_p)
        for names, one in endpoints.items()
    }
    return {
        "eagle_fleet": __version__,
        "target": {"fingerprint": subject.target},
        "temperature": subject.rule.temperature,
        "top_p": subject.rule.top_p,
        "alpha": ALPHA,
        "alpha_each": alpha,
        "tolerance": tolerance,
        "verdicts": {
            name: _worst([v for names, v in verdicts.items() if names[0] == name])
            for (name,) in providers
        },
        "providers": {
            name: _figures(one, alpha) | _needed(one, alpha, tolerance) | _available(measured, name)
            for (name,), one in providers.items()
        },
        "endpoints": [
            {"provider": names[0], "endpoint": names[1], "verdict": verdicts[names]}
            | _figures(one, alpha)
            for names, one in endpoints.items()
        ],
        "groups": [_group(group) | _figures(one, alpha) for group, one in measured.groups.items()],
        "left_out": dict(measured.choice.left_out),
    }


def _sums(
    measured: Measured, names: Callable[[Group], tuple[str, ...]]
) -> dict[tuple[str, ...], Evidence]:
    sums = defaultdict[tuple[str, ...], Evidence](Evidence)
    for group, evidence in measured.groups.items():
        sums[names(group)] += evidence
    return dict(sums)


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """A provider passes when all its endpoints do, and fails when one does."""
    if "failed" in verdicts:
        return "failed"
    return "undecided" if "undecided" in verdicts else "passed"


def _figures(one: Evidence, alpha: float) -> Object:
    width = one.half_width(alpha)
    return {
        "samples": one.samples,
        "tokens": one.tokens,
        "z": one.z,
        "drift": one.drift,
        "interval": [one.drift - width, one.drift + width],
        "spread": one.spread,
        "impossible": one.impossible,
        "stated": one.stated,
        "stated_gap": one.stated_gap / one.stated if one.stated else None,
        "stated_distance": one.stated_distance / one.stated if one.stated else None,
    }


def _needed(one: Evidence, alpha: float, tolerance: float) -> Object:
    return {"tokens_to_see_tolerance": tokens_to_see(tolerance, one.spread, alpha)}


def _available(measured: Measured, provider: str) -> Object:
    return {"tokens_available": measured.choice.tokens.get(provider, 0)}


def _group(group: Group) -> Object:
    return {
        "provider": group.provider,
        "dataset": group.dataset,
        "endpoint": group.endpoint,
    }


def write_record(directory: Path, record: Mapping[str, Any]) -> Path:
    """Put `audit.json` in place of the one that is there.

    Raises:
        InputError: another audit is writing it.
    """
    path = directory / NAME
    with claim(path) as file:
        if file is None:
            raise InputError(f"{path}: another audit is writing it; wait for that one")
        file.write(json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
        finish(file, path)
    return path


def show_record(console: Console, record: Mapping[str, Any]) -> None:
    """A line for each provider, and below it for its datasets and endpoints."""
    table = Table(box=SIMPLE)
    for name in ("provider", "tokens", "z", "nats/token", "interval", "verdict"):
        table.add_column(name, justify="left" if name in ("provider", "verdict") else "right")
    for name, one in record["providers"].items():
        table.add_row(name, *_cells(one), record["verdicts"][name])
        for group in record["groups"]:
            if group["provider"] == name:
                label = f"  {group['dataset']} · {group['endpoint']}"
                table.add_row(label, *_cells(group), "")
    console.print(table)
    for line in _notes(record):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = one["interval"]
    return (
        f"{one['tokens']:,}",
        f"{one['z']:+.1f}",
        f"{one['drift']:+.4f}",
        f"{low:+.3f} … {high:+.3f}",
    )


def _notes(record: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, one in record["providers"].items():
        if record["verdicts"][name] == "undecided":
            lines.append(
                f"{name}: {one['tokens']:,} tokens are too few: a drift of {record['tolerance']:g} "
                f"would show with {one['tokens_to_see_tolerance']:,}; the run has "
                f"{one['tokens_available']:,} of which the ids are known (--tokens)"
            )
        if one["impossible"]:
            lines.append(
                f"{name}: {one['impossible']:,} tokens lie outside of the nucleus (top_p "
                f"{record['top_p']:g}): a model that was asked as the run asked cannot write them"
            )
        if one["stated"]:
            lines.append(
                f"{name}: its own log-probabilities are {one['stated_gap']:+.3f} nats off in the "
                f"mean ({one['stated_distance']:.3f} without sign), over {one['stated']:,} tokens"
            )
    return lines
