"""The second pass: samples read in the order they lie, written in the order of the set.

In: a `Survey` after `choose`. Out: `train/`, `heldout/` and `dropped.parquet`. A shuffle that
does not fit in memory: each kept row goes to the bucket that its place in the set falls into, then
each bucket is sorted and becomes a part file. Memory: one bucket, and 64 MB of rows on their way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage.files import write_parquet
from gpu_stage.merge.choose import shuffled
from gpu_stage.merge.counts import check_ids
from gpu_stage.merge.schema import AS_SAMPLED, DROPPED, REPEATING, SET
from gpu_stage.merge.second_look import read_again
from gpu_stage.merge.settings import MergeFile
from gpu_stage.merge.survey import Survey
from gpu_stage.runs import Part

IN_FLIGHT_BYTES = 64 << 20
SIDES = ("train", "heldout")
PLACED = pa.schema([*SET, pa.field("place", pa.int64())])

Places = npt.NDArray[np.int64]


class Buckets:
    """Files of rows by the part of the set they belong to, appended to as memory fills."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[int, list[pa.Table]] = {}
        self._bytes = 0

    def add(self, rows: pa.Table, buckets: npt.NDArray[np.int64]) -> None:
        """Take rows, each with its bucket."""
        for bucket in np.unique(buckets):
            some = rows.take(np.flatnonzero(buckets == bucket)).combine_chunks()
            self._waiting.setdefault(int(bucket), []).append(some)
            self._bytes += some.nbytes
        if self._bytes > IN_FLIGHT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Append what waits to the files."""
        for bucket, tables in self._waiting.items():
            with (
                self._path(bucket).open("ab") as file,
                pa.ipc.new_stream(file, PLACED) as stream,
            ):
                for table in tables:
                    stream.write_table(table)
        self._waiting, self._bytes = {}, 0

    def take(self, bucket: int) -> pa.Table:
        """The rows of a bucket in the order of the set; its file is gone then."""
        path, tables = self._path(bucket), []
        with path.open("rb") as file:
            while file.peek(1):
                tables.append(pa.ipc.open_stream(file).read_all())
        path.unlink()
        table = pa.concat_tables(tables)
        return table.take(pc.sort_indices(table, [("place", "ascending")])).combine_chunks()

    def _path(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:05}.arrows"


def scatter(seen: Survey, settings: MergeFile, folder: Path, scratch: Path) -> None:
    """Write the part files of both sides, and what was left out.

    Raises:
        InputError: a sample's ids are not as long as it says, or its loss spans leave them; the
            samples are others than the survey saw.
    """
    place, buckets, names = _arrange(seen, settings)
    files = Buckets(scratch)
    with pq.ParquetWriter(folder / "dropped.parquet", DROPPED, compression="zstd") as dropped:
        first = 0
        for part in seen.parts:
            left_out = [DROPPED.empty_table()]
            for batch in read_again(part, seen.rows[first : first + part.rows]):
                rows = np.arange(first, first + batch.num_rows)
                first += batch.num_rows
                gone = seen.rows["reason"][rows] != 0
                left_out.append(_dropped(seen, part, batch.filter(pa.array(gone)), rows[gone]))
                if not gone.all():
                    kept = rows[~gone]
                    table = _placed(seen, part, batch.filter(pa.array(~gone)), kept, place)
                    files.add(table, buckets[kept])
            dropped.write_table(pa.concat_tables(left_out))
    files.flush()
    for bucket, name in enumerate(names):
        write_parquet(folder / name, files.take(bucket).drop(["place"]), REPEATING)


def _arrange(seen: Survey, settings: MergeFile) -> tuple[Places, Places, list[str]]:
    """For each kept row its place in the set and its bucket; the names of the buckets."""
    rows = seen.rows
    place = np.full(len(rows), -1, np.int64)
    buckets = np.full(len(rows), -1, np.int64)
    names: list[str] = []
    for heldout, side in enumerate(SIDES):
        mine = np.flatnonzero((rows["reason"] == 0) & (rows["heldout"] == bool(heldout)))
        mine = shuffled(rows, mine, settings.seed)
        place[mine] = np.arange(len(mine))
        starts = np.cumsum(rows["length"][mine], dtype=np.int64) - rows["length"][mine]
        filled = starts // settings.part_tokens
        _, numbers = np.unique(filled, return_inverse=True)
        buckets[mine] = numbers + len(names)
        count = int(numbers.max()) + 1 if len(mine) else 0
        names += [f"{side}/part-{number:05}.parquet" for number in range(count)]
    return place, buckets, names


def _placed(seen: Survey, part: Part, samples: pa.Table, rows: Places, place: Places) -> pa.Table:
    """Samples with the other columns of the set, and their places."""
    some = seen.rows[rows]
    trouble = check_ids(samples)
    if trouble is not None:
        name = samples["prompt_id"][trouble].as_py()
        raise InputError(
            f"{part.samples}: prompt {name}: ids, lengths and loss spans do not agree; move the "
            "file away and run `gpu-stage tokens` again"
        )
    columns = {name: samples[name] for name in AS_SAMPLED}
    columns["conversation"] = pa.array(f"{number:016x}" for number in some["conversation"].tolist())
    columns["run"] = _same(part.run, len(rows))
    columns["dataset"] = _same(part.dataset, len(rows))
    columns["turn"] = pa.array(some["turn"])
    columns["place"] = pa.array(place[rows])
    return pa.table({name: columns[name] for name in PLACED.names}).cast(PLACED)


def _dropped(seen: Survey, part: Part, samples: pa.Table, rows: Places) -> pa.Table:
    words = list(seen.reasons)
    columns = {
        "run": _same(part.run, len(rows)),
        "dataset": _same(part.dataset, len(rows)),
        "prompt_id": samples["prompt_id"],
        "reason": pa.array([words[code] for code in seen.rows["reason"][rows]], pa.string()),
    }
    return pa.table(columns).cast(DROPPED)


def _same(word: str, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(word), times)
