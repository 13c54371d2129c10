"""Files → rows: formats, compressions, patterns, and limits on memory."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import producer.json_cut
from fleet.errors import InputError
from producer.json_cut import Cutter
from producer.readers import read
from producer.rows import Fault, Row
from producer.sources import resolve
from producer.streams import lines

ROWS = [
    {"id": "1", "prompt": "plain"},
    {"id": "2", "prompt": 'quotes " and, commas; braces }] [{ and \\ backslashes'},
    {"id": "3", "prompt": "line\nbreaks\r\nand ünïcödé 日本 🦅"},
]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def as_jsonl() -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def as_json() -> bytes:
    return json.dumps(ROWS, indent=2).encode()


def as_csv(delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["id", "prompt"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


TEXTS = {
    ".jsonl": as_jsonl(),
    ".ndjson": as_jsonl(),
    ".json": as_json(),
    ".csv": as_csv(),
    ".tsv": as_csv("\t"),
}


def rows(folder: Path, name: str, data: bytes, **options: Any) -> list[Row | Fault]:
    (folder / name).write_bytes(data)
    (source,) = resolve([name], folder)
    return list(read(source, **options))


def values(found: list[Row | Fault]) -> list[Any]:
    return [row.value for row in found if isinstance(row, Row)]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("suffix", TEXTS)
def test_every_text_format_is_read_in_every_compression(
    tmp_path: Path, suffix: str, packing: str
) -> None:
    """The same rows come out whatever the file's format and compression."""
    found = rows(tmp_path, f"d{suffix}{packing}", PACK[packing](TEXTS[suffix]))
    # A CSV reader takes each line break in a quoted field as \n.
    expected = [{**row, "prompt": row["prompt"]} for row in ROWS]
    if suffix in (".csv", ".tsv"):
        expected = [{**row, "prompt": row["prompt"].replace("\r\n", "\n")} for row in ROWS]
    assert values(found) == expected


@pytest.mark.parametrize("packing", PACK)
def test_the_first_bytes_win_over_the_suffix(tmp_path: Path, packing: str) -> None:
    """A file that was renamed, or never had a suffix, is read for what it is."""
    for name in ("d.jsonl", "d.json", "download"):
        assert values(rows(tmp_path, name, PACK[packing](as_jsonl()))) == ROWS


def test_parquet_rows_are_numbered_across_row_groups(tmp_path: Path) -> None:
    """The line of a Parquet row is its number in the file, from 1."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "d.parquet", row_group_size=2)
    found = list(read(resolve(["d.parquet"], tmp_path)[0]))
    assert values(found) == ROWS
    assert [row.line for row in found] == [1, 2, 3]


def test_parquet_without_a_suffix_is_recognised(tmp_path: Path) -> None:
    """A hub's cache names files by hash; the magic bytes tell."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "4f2a")
    assert values(list(read(resolve(["4f2a"], tmp_path)[0]))) == ROWS


def test_nulls_that_parquet_pads_structs_with_are_taken_out(tmp_path: Path) -> None:
    """Messages of one column share their fields in Parquet; the absent ones are not null."""
    messages = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c"}]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "d.parquet")
    assert values(list(read(resolve(["d.parquet"], tmp_path)[0]))) == [{"messages": messages}]


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """Blank lines are no rows, but count as lines."""
    found = rows(tmp_path, "d.jsonl", b'{"a": 1}\n\n\n{"a": 2}\n')
    assert [row.line for row in found] == [1, 4]


def test_a_csv_record_has_the_line_it_starts_on(tmp_path: Path) -> None:
    """A quoted line break does not shift the lines of later records."""
    found = rows(tmp_path, "d.csv", b'prompt\n"a\nb\nc"\nd\n')
    assert [row.line for row in found] == [2, 5]


def test_an_unclosed_quote_costs_one_csv_line(tmp_path: Path) -> None:
    """The lines behind it are read again as records of their own."""
    found = rows(tmp_path, "d.csv", b'id,prompt\n1,"a\n2,b\n3,"c, d"\n4,e\n')
    assert [row.line for row in found if isinstance(row, Fault)] == [2]
    assert [value["prompt"] for value in values(found)] == ["b", "c, d", "e"]


def test_a_long_csv_line_is_set_aside_alone(tmp_path: Path) -> None:
    """Also where its start opens a quote that its lost end would have closed."""
    found = rows(tmp_path, "d.csv", b'prompt\na\n"' + b"x" * 500 + b'"\nb\n', limit_bytes=100)
    assert values(found) == [{"prompt": "a"}, {"prompt": "b"}]
    assert [(row.line, row.kind) for row in found if isinstance(row, Fault)] == [(3, "too long")]


def test_a_long_line_is_set_aside_alone(tmp_path: Path) -> None:
    """The line after it is read, under its own number and offset."""
    data = b'{"a": 1}\n{"a": "' + b"x" * 500 + b'"}\n{"a": 3}\n{"a": "\xff"}\n'
    found = rows(tmp_path, "d.jsonl", data, limit_bytes=100)
    assert [row.line for row in found] == [1, 2, 3, 4]
    assert [row.kind for row in found if isinstance(row, Fault)] == ["too long", "not UTF-8"]
    assert isinstance(found[3], Fault)
    assert f"byte {data.index(0xFF) + 1} of the text" in found[3].reason


def test_numbers_that_only_python_writes_do_not_cost_the_row(tmp_path: Path) -> None:
    """pandas writes NaN for a missing value; the row's prompt is still good."""
    (row,) = rows(tmp_path, "d.jsonl", b'{"prompt": "x", "score": NaN, "big": 1e999}\n')
    assert isinstance(row, Row)
    assert row.value["prompt"] == "x"


def test_a_line_of_exactly_the_limit_is_read() -> None:
    """The limit counts the line's bytes without its break."""
    stream = io.BufferedReader(io.BytesIO(b"x" * 10 + b"\n" + b"y" * 10))  # type: ignore[arg-type]
    assert [line.too_long for line in lines(stream, 10)] == [False, False]


@pytest.mark.parametrize("text", ['{"a": "x"}', '{"a": "\\"\\\\", "b": [1, {"c": "]},"}]}', "5"])
def test_a_long_element_is_set_aside_alone(tmp_path: Path, text: str) -> None:
    """Its end is found although it is never held: also within strings and after escapes."""
    long = json.dumps({"deep": [{"a": 'x"\\' * 200 + "],}"}], "b": "\\" * 301})
    data = f"[{text}, {long}, {text}]".encode()
    found = rows(tmp_path, "d.json", data, limit_bytes=100)
    assert [row.line for row in found if isinstance(row, Fault)] == [2]
    assert values(found) == [json.loads(text)] * 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


class Trickle(io.RawIOBase):
    """A stream of a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        chunk = self._data.read(min(3, len(target)))
        target[: len(chunk)] = chunk
        return len(chunk)


@settings(max_examples=100, deadline=None)
@given(st.lists(JSON, min_size=1), st.sampled_from([None, 1]))
def test_the_cutter_cuts_an_array_as_a_parser_would(value: list[Any], indent: int | None) -> None:
    """Whatever the elements, and wherever the chunks of the stream end."""
    size = producer.json_cut.BUFFER_BYTES
    producer.json_cut.BUFFER_BYTES = 4
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
        cutter = Cutter(io.BufferedReader(Trickle(text), buffer_size=3), 1 << 20)
        assert cutter.peek() == b"["
        cutter.take()
        assert [json.loads(piece.data) for piece in cutter.pieces()] == value
        assert cutter.peek() == b""
    finally:
        producer.json_cut.BUFFER_BYTES = size


def test_an_object_is_searched_for_its_list_of_rows(tmp_path: Path) -> None:
    """Other members, before and after, are passed over."""
    document = {"version": {"major": [1]}, "columns": ["a"], "data": ROWS, "note": "]},"}
    for indent in (None, 2):
        assert (
            values(rows(tmp_path, "d.json", json.dumps(document, indent=indent).encode())) == ROWS
        )


def test_a_json_file_may_be_one_conversation(tmp_path: Path) -> None:
    """A list of messages is not a list of rows."""
    document = {"id": 1, "messages": [{"role": "user", "content": "x"}]}
    for indent in (None, 2):
        data = json.dumps(document, indent=indent).encode()
        assert values(rows(tmp_path, "d.json", data)) == [document]


def test_patterns_name_each_file_once_in_a_fixed_order(tmp_path: Path) -> None:
    """Files, globs, `**`, folders and lists of them; the name is relative to the run file."""
    for name in ("b.jsonl", "a.jsonl", "sub/deep/c.jsonl.gz", "sub/notes.md", "sub/.d.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    def names(*patterns: str) -> list[str]:
        return [source.name for source in resolve(list(patterns), tmp_path)]

    assert names("*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names("b.jsonl", "*.jsonl", str(tmp_path / "a.jsonl")) == ["b.jsonl", "a.jsonl"]
    assert names("**/*.gz") == ["sub/deep/c.jsonl.gz"]
    assert names("sub") == ["sub/deep/c.jsonl.gz"]
    assert names(".") == ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl.gz"]


def test_a_file_may_have_a_glob_character_in_its_name(tmp_path: Path) -> None:
    """A file that is there is taken by its name before that is read as a pattern."""
    (tmp_path / "d[1].jsonl").write_bytes(b"x")
    assert [source.name for source in resolve(["d[1].jsonl"], tmp_path)] == ["d[1].jsonl"]


def test_the_run_files_folder_may_have_a_glob_character_in_its_name(tmp_path: Path) -> None:
    """Only the pattern is a pattern."""
    base = tmp_path / "[x]*"
    base.mkdir()
    (base / "d.jsonl").write_bytes(b"x")
    assert [source.name for source in resolve(["*.jsonl"], base)] == ["d.jsonl"]


def test_a_file_that_cannot_be_opened_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    """The message has the system's reason."""
    (tmp_path / "d.jsonl").write_bytes(b"x")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"cannot be opened \(Permission denied\)"):
        resolve(["d.jsonl"], tmp_path)
