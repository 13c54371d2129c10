"""Part files: whole or absent, and they say what they cover."""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import InputError
from fleet.schemas import COMPLETIONS, REJECTS
from workers import parts
from workers.archive import DUPLICATE, Archive, prompt_key
from workers.batch import Batch
from workers.parts import Part
from workers.rows import Identity, Record

T0_MS = 1_777_319_888_375


def values(number: int, response: str = "{}") -> tuple[Any, ...]:
    plain: dict[str, Any] = {
        "prompt_id": f"{number:032x}",
        "turn": 0,
        "messages": "[]",
        "attempts": 1,
        "latency_s": number + 0.1,
        "requested_at": T0_MS,
        "completed_at": T0_MS + number,
        "worker": "w",
        "response": response,
    }
    return tuple(plain.get(name) for name in COMPLETIONS.names)


def identity(number: int) -> Identity:
    return f"{number:032x}", "w", 1, T0_MS + number, number + 0.1


def record(number: int, dataset: str = "B3", reason: str | None = None) -> Record:
    prompt_id = f"{number:032x}"
    return Record(prompt_id, dataset, reason, values(number), identity(number), 10, False)


def write(folder: Path, numbers: range) -> Part:
    rows = [values(number) for number in numbers]
    span = (T0_MS, numbers[0]), (T0_MS, numbers[-1])
    return parts.write(folder, COMPLETIONS, rows, span, 100)


def test_a_part_says_what_it_covers(tmp_path: Path) -> None:
    """First and last stream id, rows and writer stand in the metadata, and scan reads them."""
    part = write(tmp_path / "dataset=B3", range(3, 8))
    metadata = pq.read_metadata(part.path).metadata
    assert metadata[b"eagle_fleet.first_stream_id"] == f"{T0_MS}-3".encode()
    assert metadata[b"eagle_fleet.last_stream_id"] == f"{T0_MS}-7".encode()
    assert metadata[b"eagle_fleet.rows"] == b"5"
    assert metadata[b"eagle_fleet.writer"].startswith(b"eagle-fleet ")
    (scanned,) = parts.scan(part.path.parent)
    assert (scanned.rows, scanned.first, scanned.last) == (5, (T0_MS, 3), (T0_MS, 7))
    assert part.file_bytes == part.path.stat().st_size


def test_a_part_has_the_schema_of_the_records(tmp_path: Path) -> None:
    """Types and nullability are those of `fleet.schemas`; the text is zstd."""
    part = write(tmp_path, range(3))
    assert pq.read_schema(part.path).equals(COMPLETIONS)
    column = pq.read_metadata(part.path).row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_row_groups_are_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    """10,000 rows or about 32 MB, whichever is less."""
    span = (T0_MS, 0), (T0_MS, 1)
    many = parts.write(tmp_path, COMPLETIONS, [values(n) for n in range(10_001)], span, 100)
    assert pq.read_metadata(many.path).num_row_groups == 2
    text_bytes = 4 * parts.ROW_GROUP_BYTES
    wide = parts.write(tmp_path, COMPLETIONS, [values(n) for n in range(8)], span, text_bytes)
    assert pq.read_metadata(wide.path).num_row_groups == 4


def test_equal_stream_ids_never_replace_a_part(tmp_path: Path) -> None:
    """Ids may come again after Redis lost data: both files stay."""
    first, second = write(tmp_path, range(3)), write(tmp_path, range(3))
    assert first.path != second.path
    assert len(parts.scan(tmp_path)) == 2


def test_prompt_ids_and_identities_come_back(tmp_path: Path) -> None:
    """What the collector needs to know again after a crash."""
    part = write(tmp_path / "dataset=B3", range(4))
    assert parts.prompt_ids(part) == [f"{n:032x}" for n in range(4)]
    assert list(parts.identities(part)) == [identity(n) for n in range(4)]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file under its final name, and no temporary one."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, range(3))
    assert list(tmp_path.iterdir()) == []


def test_a_name_appears_only_after_its_bytes_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync of the file, rename, fsync of the folder: in this order, for a loss of power."""
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def seen_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def seen_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    write(tmp_path, range(3))
    assert steps == ["file", "rename", "folder"]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """A temporary file of a writer that died goes; finished parts stay."""
    part = write(tmp_path, range(3))
    (tmp_path / ".part-1-0-abc.parquet.tmp").write_bytes(b"PAR1")
    assert parts.remove_unfinished(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [part.path]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_a_damaged_part_is_named(tmp_path: Path, content: bytes) -> None:
    """The error says which file and what to do with it."""
    (tmp_path / "part-1-0-abc.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"part-1-0-abc\.parquet: cannot be read.*move it out"):
        parts.scan(tmp_path)


def test_an_archive_takes_a_prompt_once(tmp_path: Path) -> None:
    """The second row of a prompt goes to the rejects with its reason, after a restart too."""
    archive = opened(tmp_path)
    batch = Batch()
    for sequence, dataset in enumerate(["B3", "B4"]):
        folder, row = archive.place(record(1, dataset))
        batch.add(folder, (T0_MS, sequence), row, 10)
    archive.store(batch)
    folder, row = opened(tmp_path, held=archive).place(record(1))
    assert (folder, row[:2]) == (archive.rejects, ("B3", DUPLICATE))
    assert len(list(archive.completions.glob("dataset=B3/*.parquet"))) == 1
    (reject,) = archive.rejects.glob("*.parquet")
    assert pq.read_schema(reject).equals(REJECTS)
    assert pq.read_table(reject)["reason"].to_pylist() == [DUPLICATE]


def test_parts_that_another_tool_wrote_still_count(tmp_path: Path) -> None:
    """A merged file without our metadata: its prompts are known, its rows recognised."""
    archive = opened(tmp_path)
    part = write(archive.completions / "dataset=B3", range(3))
    plain = pq.read_table(part.path, partitioning=None).replace_schema_metadata(None)
    part.path.unlink()
    pq.write_table(plain, part.path.with_name("merged.parquet"))
    again = opened(tmp_path, held=archive)
    assert len(again) == 3
    assert identity(2) in again.written_since((T0_MS * 2, 0))


def test_a_line_is_set_aside_once(tmp_path: Path) -> None:
    """The same entry again, after a crash with half a line written, gives one whole line."""
    archive = opened(tmp_path)
    path = tmp_path / "rejects" / "unreadable.jsonl"
    for _ in range(2):
        batch = Batch()
        archive.set_aside(batch, b"5-0", {b"m": b"\xff"}, "why")
        archive.store(batch)
        with path.open("ab") as file:
            file.write(b'{"half a li')
        archive = opened(tmp_path, held=archive)
    batch = Batch()
    archive.set_aside(batch, b"6-0", {b"m": b"\xff"}, "why")
    archive.store(batch)
    lines = path.read_bytes().splitlines()
    assert [line[:22] for line in lines] == [b'{"stream_id": "5-0", "', b'{"stream_id": "6-0", "']


def opened(directory: Path, held: Archive | None = None) -> Archive:
    """An archive as a new process sees it; `held` is the one whose process has ended."""
    if held is not None:
        held.close()
    archive = Archive(directory)
    assert archive.lock() == 0
    archive.open()
    return archive


def test_an_archive_has_one_holder(tmp_path: Path) -> None:
    """The second sees who holds it, and gets it when the first lets go."""
    first, second = opened(tmp_path), Archive(tmp_path)
    assert second.lock() == os.getpid()
    first.close()
    assert second.lock() == 0


def test_a_million_prompts_fit_in_memory() -> None:
    """The largest run in mind: under 100 MB."""
    key = prompt_key("f" * 32)
    assert sys.getsizeof(set(range(1_000_000))) + 1_000_000 * sys.getsizeof(key) < 100e6


def test_stream_ids_compare_as_numbers() -> None:
    """`9-10` comes after `9-9`."""
    assert parts.parse_id(b"9-10") > parts.parse_id(b"9-9")
    assert parts.format_id(parts.parse_id(b"12-3")) == "12-3"
    assert pa.types.is_timestamp(COMPLETIONS.field("completed_at").type)
