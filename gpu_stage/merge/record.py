"""`set.json`: everything that the card says, for programs, and the check that nothing is missing.

In: a `Survey` after `choose`, and the folder with its part files written. Out: a dict of JSON.
Invariant: for each dataset, rows read = rows kept + rows dropped by each reason, and as many are in
the files; otherwise there is no set. It holds no time and no host: the same input gives the same
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from fleet import __version__
from fleet.errors import InputError
from gpu_stage.files import sha256
from gpu_stage.merge.rows import Rows
from gpu_stage.merge.scatter import SIDES
from gpu_stage.merge.settings import FIDELITIES, MergeFile
from gpu_stage.merge.survey import Survey
from gpu_stage.runs import Run

FORMAT = 1
Object = dict[str, Any]
Mask = npt.NDArray[np.bool_]


def make_record(seen: Survey, settings: MergeFile, folder: Path) -> Object:
    """What is in the set and what is not.

    Raises:
        InputError: the rows do not balance, or none is left for training.
    """
    rows = seen.rows
    kept = rows["reason"] == 0
    datasets = {
        name: {"read": _total(rows[mine]), "dropped": _dropped(seen, mine), **_sides(rows, mine)}
        for code, name in enumerate(seen.datasets)
        for mine in [rows["dataset"] == code]
    }
    everything = np.ones(len(rows), bool)
    overall = {
        "read": _total(rows),
        "dropped": _dropped(seen, everything),
        **_sides(rows, everything),
    }
    check_balance(overall, datasets, folder)
    return {
        "format": FORMAT,
        "eagle_fleet": __version__,
        "settings": msgspec.to_builtins(_portable(settings)),
        "overall": overall,
        "datasets": dict(sorted(datasets.items())),
        "providers": _providers(seen, kept),
        "evaluation_sets": _evaluation_sets(seen),
    }


def of_runs(runs: Sequence[Run], seen: Survey, out: Path) -> list[Object]:
    """The runs, their parts and the audit's verdicts; directories relative to the set's."""
    return [
        {
            "run": run.name,
            "directory": os.path.relpath(run.directory.resolve(), out.resolve()),
            "model": run.config.run.model if run.config else None,
            "audit": _sorted(run.verdicts()),
            "samples": [
                {
                    "path": str(part.samples.relative_to(run.directory)),
                    "rows": part.rows,
                    "sha256": sha256(part.samples),
                }
                for part in seen.parts
                if part.run == run.name
            ],
        }
        for run in runs
    ]


def of_files(folder: Path) -> dict[str, str]:
    """The hash of each file of the set."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path) for path in paths}


def check_balance(overall: Object, datasets: Mapping[str, Object], folder: Path) -> None:
    """Hold rows read against rows kept and dropped, and those against the files.

    Raises:
        InputError: a row is missing or too many; or there is nothing to train on.
    """
    for name, record in [("all datasets", overall), *datasets.items()]:
        kept = sum(record[side]["rows"] for side in SIDES)
        dropped = sum(record["dropped"].values())
        if record["read"]["rows"] != kept + dropped:
            raise InputError(
                f"{name}: {record['read']['rows']:,} rows read, {kept:,} kept and {dropped:,} "
                "dropped; this should not happen, please report it"
            )
    for side in SIDES:
        written = sum(pq.read_metadata(p).num_rows for p in folder.glob(f"{side}/*.parquet"))
        if written != overall[side]["rows"]:
            raise InputError(
                f"{written:,} rows written to {side}, {overall[side]['rows']:,} chosen; were "
                "samples made anew meanwhile? Try again"
            )
    if not overall["train"]["rows"]:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in overall["dropped"].items())
        raise InputError(
            f"of {overall['read']['rows']:,} rows none is left to train on (dropped: {reasons}); "
            "widen the filters"
        )


def _total(rows: Rows) -> Object:
    length, masked = (int(rows[name].sum(dtype=np.int64)) for name in ("length", "masked"))
    return {
        "rows": len(rows),
        "conversations": len(np.unique(rows["conversation"])),
        "tokens": length,
        "loss_tokens": masked,
        "mask_density": round(masked / length, 6) if length else None,
        "cost_usd": round(float(rows["cost_usd"].sum()), 9),
    }


def _sides(rows: Rows, mine: Mask) -> dict[str, Object]:
    kept = mine & (rows["reason"] == 0)
    return {
        side: _total(rows[kept & (rows["heldout"] == bool(number))])
        for number, side in enumerate(SIDES)
    }


def _dropped(seen: Survey, mine: Mask) -> dict[str, int]:
    counts = np.bincount(seen.rows["reason"][mine], minlength=1)
    words = list(seen.reasons)
    return _sorted({words[code]: int(n) for code, n in enumerate(counts) if code and n})


def _providers(seen: Survey, kept: Mask) -> dict[str, Object]:
    found: dict[str, Object] = {}
    for code, name in enumerate(seen.providers):
        rows = seen.rows[kept & (seen.rows["provider"] == code)]
        if len(rows):
            times = np.bincount(rows["fidelity"], minlength=len(FIDELITIES))
            shares = {word: int(n) for word, n in zip(FIDELITIES, times, strict=True) if n}
            found[name] = {**_total(rows), "fidelity": shares}
    return _sorted(found)


def _evaluation_sets(seen: Survey) -> dict[str, Object]:
    """Rows that overlap with each set; one that overlaps with two counts in both."""
    return {
        name: {
            "prompts": prompts,
            "rows_matched": int(((seen.rows["sets"] >> np.uint64(bit)) & np.uint64(1)).sum()),
        }
        for bit, (name, prompts) in enumerate(seen.evaluation.prompts.items())
    }


def _portable(settings: MergeFile) -> MergeFile:
    """With file names for paths: where a file lay on this machine says nothing on another."""
    sets = [
        msgspec.structs.replace(one, path=Path(one.path).name) for one in settings.evaluation_sets
    ]
    return msgspec.structs.replace(settings, evaluation_sets=sets)


def _sorted(found: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(found.items()))
