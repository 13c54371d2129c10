"""The files of a run, as the collector writes them, in the readers that people use."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pytest
from datasets import load_dataset

from fleet.schemas import COMPLETIONS
from workers.archive import Archive
from workers.batch import Batch
from workers.rows import Record

DATASETS = ["B1", "B2-math", "2026"]
WHEN = datetime(2026, 4, 27, 19, 58, 8, 375000, UTC)


def record(number: int) -> Record:
    when_ms = int(WHEN.timestamp() * 1000)
    plain: dict[str, Any] = {
        "prompt_id": f"{number:032x}",
        "turn": 0,
        "messages": '[{"role":"user","content":"olá 😀"}]',
        "content": f" Oi! {number}",
        "cost_usd": 0.5,
        "completion_tokens": 10,
        "attempts": 1,
        "latency_s": 1.5,
        "requested_at": when_ms,
        "completed_at": when_ms,
        "worker": "w",
        "response": "{}",
    }
    values = tuple(plain.get(name) for name in COMPLETIONS.names)
    identity = (plain["prompt_id"], "w", 1, when_ms, 1.5)
    return Record(plain["prompt_id"], DATASETS[number % 3], None, values, identity, 10, False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two part files in each of three datasets, and its collector's lock."""
    run = tmp_path_factory.mktemp("run")
    archive = Archive(run)
    assert archive.lock() == 0
    archive.open()
    for numbers in (range(30), range(30, 60)):
        batch = Batch()
        for number in numbers:
            folder, row = archive.place(record(number))
            batch.add(folder, (1, number), row, 10)
        archive.store(batch)
    return run / "completions"


def test_pandas_reads_the_folder(directory: Path) -> None:
    """`read_parquet(folder)`: all rows, the dataset as a column, times in UTC."""
    frame = pandas.read_parquet(directory)
    assert len(frame) == 60
    assert set(frame["dataset"].astype(str)) == set(DATASETS)
    assert frame["completed_at"].iloc[0] == pandas.Timestamp(WHEN)
    assert set(frame.columns) == {*COMPLETIONS.names, "dataset"}


def test_polars_reads_the_folder(directory: Path) -> None:
    """`scan_parquet` of the folder and of a glob: the same, lazily."""
    for source in (str(directory), f"{directory}/**/*.parquet"):
        frame = polars.scan_parquet(source, hive_partitioning=True).collect()
        assert frame.height == 60
        assert set(frame["dataset"].cast(str)) == set(DATASETS)
        assert frame["completed_at"].dtype == polars.Datetime("ms", "UTC")
        assert frame["completed_at"][0] == WHEN


def test_duckdb_reads_the_folder(directory: Path) -> None:
    """A plain SELECT over the glob groups by the dataset in the path."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    query = "SELECT dataset, count(*), sum(cost_usd) FROM read_parquet(?) GROUP BY 1"
    found = connection.execute(query, [f"{directory}/*/*.parquet"]).fetchall()
    assert {str(name): rest for name, *rest in found} == {name: [20, 10.0] for name in DATASETS}
    query = "SELECT DISTINCT typeof(completed_at), completed_at::VARCHAR FROM read_parquet(?)"
    (row,) = connection.execute(query, [f"{directory}/*/*.parquet"]).fetchall()
    assert row == ("TIMESTAMP WITH TIME ZONE", "2026-04-27 19:58:08.375+00")


def test_datasets_loads_the_files(directory: Path, tmp_path: Path) -> None:
    """`load_dataset("parquet", data_files=…)`: all rows with the columns of the files."""
    files = f"{directory}/dataset=*/*.parquet"
    loaded = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 60
    assert loaded.column_names[: len(COMPLETIONS.names)] == COMPLETIONS.names
    assert loaded[0]["completed_at"].astimezone(UTC) == WHEN
    assert sorted(loaded["prompt_id"]) == [f"{number:032x}" for number in range(60)]
