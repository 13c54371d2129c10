"""What recovery of ids is worth: its section of `README.md`, from its part of `results.json`."""

from collections.abc import Mapping
from typing import Any

Row = tuple[str, ...]

TITLE = "## Ids of completions whose count is off\n\n"
ABSENT = "Not measured: no tokenizer or no completions in ../shared/data here.\n"
TEXT = """The completions of SmolLM2 in `../shared/data/smollm2/faithful` whose sampled ids are
known, given as text and count. `tokens.recovery` changes those billed fewer tokens than were found
of which it is sure enough (a confidence of {least_confidence} or more). Its prior was learned on
other rows: on the other half by prompt, or on the same model with coarser weights (`rtn4`). "In
place": sampled tokens of the changed rows that stand at their bytes. A text of {timed_tokens:,}
Kimi tokens takes {cpu_ms:.0f} ms of CPU time (load average {load:.1f}).

Rows billed more tokens are left alone: {more[changed]} would be changed, {more[changed_exact]} of
them rightly. A count that is off for another reason misleads: of {misled[rows]} rows that are
right as they are, billed one token fewer, {misled[changed]} would be changed.

The last line is another way: the target reads each text and scores {scored} of its edits, whatever
the count. Its rows are the first {rows}, at {seconds:.1f} s each.
"""
CUTS = """
The first line by how sure the prior has to be before a row is changed:
"""
HEAD = (
    "by", "rows", "count off", "exact before", "exact after", "changed", "of these exact",
    "in place before", "in place after",
)  # fmt: skip
CUT_HEAD = ("confidence", "changed", "of these exact", "in place before", "in place after")


def text(results: Mapping[str, Any]) -> str:
    """What stands before the tables."""
    if not results:
        return TITLE + ABSENT
    return TITLE + TEXT.format(**dict(results["target"]) | dict(results))


def body(results: Mapping[str, Any]) -> list[Row]:
    """Rows under `HEAD`."""
    names = {"crossed": "prior of the other half", "other": "prior of `rtn4`", "target": "target"}
    return [(name, *_whole(results[key]), *_changed(results[key])) for key, name in names.items()]


def cuts(results: Mapping[str, Any]) -> list[Row]:
    """Rows under `CUT_HEAD`."""
    return [(f"≥ {row['threshold']}", *_changed(row)) for row in results["cuts"]]


def _whole(row: Mapping[str, Any]) -> Row:
    exact = (f"{row[key] / row['rows']:.1%}" for key in ("exact_before", "exact_after"))
    return (str(row["rows"]), str(row["off"]), *exact)


def _changed(row: Mapping[str, Any]) -> Row:
    share = row["changed_exact"] / (row["changed"] or 1)
    places = (f"{row[key]:.2%}" for key in ("in_place_before", "in_place_after"))
    return (str(row["changed"]), f"{row['changed_exact']} ({share:.0%})", *places)
