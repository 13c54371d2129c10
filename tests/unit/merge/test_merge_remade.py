"""Samples that are made again while a merge reads them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from samples_kit import Row, read, write_run

from fleet.errors import InputError
from gpu_stage.merge.choose import choose
from gpu_stage.merge.scatter import scatter
from gpu_stage.merge.settings import Filters, MergeFile
from gpu_stage.merge.survey import Survey, survey
from gpu_stage.runs import open_run

SETTINGS = MergeFile(heldout_share=0.0, filters=Filters(fidelity=("counted",)))
ROWS = [Row(text=f"question {n}", fidelity="near" if n == 3 else "counted") for n in range(6)]


def look(directory: Path, rows: Sequence[Row]) -> Survey:
    """The first pass over a run of two parts."""
    run = open_run(write_run(directory, {"B1": rows}, rows_a_part=3))
    seen = survey(run.parts(), SETTINGS, {run.name: {}}, directory)
    choose(seen, SETTINGS)
    return seen


def again(seen: Survey, directory: Path, rows: Sequence[Row], rows_a_part: int = 3) -> None:
    """The second pass, after the samples were written anew."""
    write_run(directory, {"B1": rows}, rows_a_part)
    folder = directory / "set"
    for name in ("train", "scratch"):
        (folder / name).mkdir(parents=True)
    scatter(seen, SETTINGS, folder, folder / "scratch")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (0, {"text": "another question"}),
        (0, {"fidelity": "rejected"}),
        (3, {"fidelity": "counted"}),
        (4, {"prompt_ids": (1, 2)}),
        (4, {"completion_ids": (4, 5)}),
        (4, {"spans": [(4, 6)]}),
    ],
    ids=["prompt", "fidelity", "fidelity of a dropped row", "prompt's length", "length", "mask"],
)
def test_samples_made_again_between_the_passes_are_refused(
    tmp_path: Path, place: int, change: dict[str, object]
) -> None:
    """The first pass has filtered and counted others: the part and the prompt are named."""
    seen = look(tmp_path / "run", ROWS)
    rows = [replace(row, **change) if n == place else row for n, row in enumerate(ROWS)]
    message = rf"part-000{place // 3}\.parquet: prompt {rows[place].prompt_id}: .*made again"
    with pytest.raises(InputError, match=message):
        again(seen, tmp_path / "run", rows)


@pytest.mark.parametrize("rows_a_part", [2, 4])
def test_a_part_of_another_size_is_refused(tmp_path: Path, rows_a_part: int) -> None:
    """Its rows would be taken for those of the part behind it."""
    seen = look(tmp_path / "run", ROWS)
    with pytest.raises(InputError, match=r"part-0000\.parquet: .*3 rows"):
        again(seen, tmp_path / "run", ROWS, rows_a_part)


def test_the_same_samples_made_again_are_taken(tmp_path: Path) -> None:
    """What counts is what they are, not when they were written."""
    seen = look(tmp_path / "run", ROWS)
    again(seen, tmp_path / "run", ROWS)
    assert len(read(tmp_path / "run" / "set" / "train")) == 5
