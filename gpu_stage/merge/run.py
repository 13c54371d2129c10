"""The steps of a merge. In: runs, settings, a folder's name. Out: the folder, complete, or none."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_stage.files import whole_folder
from gpu_stage.marks import check_made_alike
from gpu_stage.merge.card import card
from gpu_stage.merge.choose import choose
from gpu_stage.merge.counts import count_tokens
from gpu_stage.merge.record import make_record, of_files, of_runs
from gpu_stage.merge.scatter import scatter
from gpu_stage.merge.settings import MergeFile
from gpu_stage.merge.survey import survey
from gpu_stage.part_rows import read_batches
from gpu_stage.runs import open_runs

log = logging.getLogger(__name__)


def merge(paths: Sequence[Path], out: Path, settings: MergeFile) -> dict[str, Any]:
    """Make a training set.

    Args:
        paths: directories or run files; of equal rows the one in the earlier run stays.

    Returns:
        The record that is in `set.json`.

    Raises:
        ConfigError: `out` is there, or the settings do not fit the runs.
        InputError: a run cannot be used as it is.
    """
    runs = open_runs(paths)
    by_run = {run.directory: run.parts() for run in runs}
    check_made_alike({where: [part.samples for part in some] for where, some in by_run.items()})
    parts = [part for some in by_run.values() for part in some]
    verdicts = {run.name: run.verdicts_for(settings.filters.audit) for run in runs}
    with whole_folder(out) as folder:
        scratch = folder / "scratch"
        scratch.mkdir()
        log.info("looking at %d parts", len(parts), extra={"action": "merge"})
        seen = survey(parts, settings, verdicts, scratch)
        choose(seen, settings)
        log.info("writing the set of %d rows", len(seen.rows), extra={"action": "merge"})
        scatter(seen, settings, folder, scratch)
        shutil.rmtree(scratch)
        record = make_record(seen, settings, folder)
        np.save(folder / "token_counts.npy", count_tokens(_train(folder)))
        record |= {"runs": of_runs(runs, seen, out), "files": of_files(folder)}
        (folder / "set.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        (folder / "card.md").write_text(card(out.name, record), "utf-8")
    return record


def _train(folder: Path) -> Iterator[pa.Table]:
    for path in sorted(folder.glob("train/part-*.parquet")):
        yield from read_batches(path, ["input_ids", "loss_spans"])
