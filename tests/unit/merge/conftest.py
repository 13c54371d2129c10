"""A merge in a line: rows of datasets and runs in, the set's folder out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples_kit import Row, write_run

from gpu_stage.merge import merge
from gpu_stage.merge.settings import load

Merge = Callable[..., Path]


@pytest.fixture
def merged(tmp_path: Path) -> Merge:
    """Merge runs, each a dict of datasets, under the text of a merge file."""
    made = 0

    def make(*runs: dict[str, Sequence[Row]], toml: str = "", **options: Any) -> Path:
        nonlocal made
        made += 1
        base = tmp_path / f"merge{made}"
        paths = [write_run(base / f"run{n}", run, **options) for n, run in enumerate(runs)]
        (base / "merge.toml").write_text(toml)
        merge(paths, base / "set", load(base / "merge.toml"))
        return base / "set"

    return make
