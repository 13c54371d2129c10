"""Malformed rows and files: each a reject with its line and reason, or a clear error.

Every case stands between good rows, which must survive it.
"""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from fleet.errors import InputError
from fleet.run_config import Dataset, Sampling
from producer.freeze import FreezeSummary, freeze, read_prompts

GOOD = [b'{"prompt": "first good"}', b'{"prompt": "second good"}']


class Read(NamedTuple):
    """What became of a dataset."""

    summary: FreezeSummary
    prompts: list[str]
    rejects: list[dict[str, Any]]


def read(folder: Path, name: str, data: bytes, **options: Any) -> Read:
    (folder / name).write_bytes(data)
    dataset = Dataset(name="D", path=name, **options)
    summary = freeze(dataset, folder, folder / "run", "a/b", Sampling(), seen=set())
    rows = read_prompts(folder / "run/prompts/D.parquet")
    prompts = [json.loads(row.messages)[-1]["content"] for row in rows]
    path = folder / "run/rejects/prompts-D.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return Read(summary, prompts, [json.loads(line) for line in lines])


def row(value: Any) -> bytes:
    return json.dumps(value).encode()


def messages(*pairs: tuple[Any, Any], **more: Any) -> bytes:
    return row({"messages": [{"role": role, "content": text} for role, text in pairs], **more})


def content(value: Any) -> bytes:
    return messages(("user", value))


def calls(value: Any) -> bytes:
    """An assistant's tool calls between two user messages."""
    user = {"role": "user", "content": "x"}
    return row({"messages": [user, {"role": "assistant", "tool_calls": value}, user]})


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"role": "tool", "content": "r", "tool_call_id": "c2"}
USER = {"role": "user", "content": "x"}
DEEP = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

#: id → (the row, a part of its reason)
ROWS: dict[str, tuple[bytes, str]] = {
    # not JSON
    "plain text": (b"hello", "not JSON: Expecting value at character 1"),
    "cut within a string": (b'{"prompt": "x', "Unterminated string"),
    "cut after a key": (b'{"prompt":', "Expecting value"),
    "no closing brace": (b'{"prompt": "x"', "Expecting ',' delimiter"),
    "two objects on a line": (b'{"prompt": "x"} {"prompt": "y"}', "Extra data"),
    "a comma after the object": (b'{"prompt": "x"},', "Extra data"),
    "trailing comma in the object": (b'{"prompt": "x",}', "not JSON"),
    "single quotes": (b"{'prompt': 'x'}", "property name enclosed in double quotes"),
    "python literals": (b'{"prompt": None}', "Expecting value"),
    "unquoted key": (b'{prompt: "x"}', "property name"),
    "a raw tab in a string": (b'{"prompt": "a\tb"}', "Invalid control character"),
    "a bad escape": (b'{"prompt": "\\x41"}', "Invalid \\escape"),
    "a cut unicode escape": (b'{"prompt": "\\u12"}', "\\uXXXX"),
    "a comment": (b'// {"prompt": "x"}', "not JSON"),
    "leading zeros": (b'{"prompt": 007}', "not JSON"),
    "nested a hundred thousand deep": (DEEP, "nested too deeply"),
    "a NUL byte in a string": (b'{"prompt": "a\0b"}', "1 NUL bytes"),
    "a line of NUL bytes": (b"\0" * 64, "64 NUL bytes"),
    "a number of five thousand digits": (b'{"prompt": ' + b"9" * 5000 + b"}", ""),
    # encodings
    "latin-1": ('{"prompt": "café"}'.encode("latin-1"), "not UTF-8: 0xe9 at byte 16 of the line"),
    "a cut UTF-8 sequence": (b'{"prompt": "\xe2\x82"}', "not UTF-8: 0xe2 at byte 13"),
    "overlong UTF-8": (b'{"prompt": "\xc0\xaf"}', "not UTF-8: 0xc0"),
    "a surrogate in UTF-8": (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8: 0xed"),
    "shift-jis": ('{"prompt": "日本"}'.encode("shift-jis"), "not UTF-8"),
    "UTF-16 within a UTF-8 file": ('{"prompt": "x"}'.encode("utf-16-le"), "NUL bytes"),
    "bytes that are no key's UTF-8": (b'{"\xff": 1, "prompt": "x"}', "not UTF-8: 0xff"),
    "half a surrogate pair, escaped": (b'{"prompt": "a\\ud800b"}', "surrogate pair, U+D800"),
    "the other half, escaped": (b'{"prompt": "\\udc00"}', "surrogate pair, U+DC00"),
    "half a pair in a message": (
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        "message 1 of `messages` holds half of a surrogate pair",
    ),
    "an escaped NUL in the prompt": (b'{"prompt": "a\\u0000b"}', "NUL character"),
    "an escaped NUL in a message": (content("a\0"), "NUL character"),
    # not an object
    "a list": (b"[1, 2]", "the row is a list, expected an object"),
    "a string": (b'"hello"', "the row is text"),
    "a number": (b"42", "the row is a number"),
    "null": (b"null", "the row is null"),
    "true": (b"true", "the row is true or false"),
    # columns
    "an empty object": (b"{}", "the row's columns: none"),
    "unknown columns": (b'{"frage": "x", "id": 1}', "columns: frage, id; set `column`"),
    "a column in other case": (b'{"Prompt": "x"}', "columns: Prompt"),
    "an answer without a question": (b'{"answer": "x"}', "columns: answer"),
    "input without instruction": (b'{"input": "x"}', "columns: input"),
    # empty
    "an empty prompt": (b'{"prompt": ""}', "the prompt is empty: `prompt`"),
    "a prompt of white space": (b'{"prompt": " \\n\\t "}', "the prompt is empty"),
    "a null prompt": (b'{"prompt": null}', "the prompt is empty: `prompt`"),
    "all prompt columns empty": (b'{"question": null, "text": ""}', "`question`, `text`"),
    "an empty list of messages": (b'{"messages": []}', "`messages` is an empty list"),
    "an empty list of turns": (b'{"turns": []}', "`turns` is an empty list"),
    "an empty turn": (b'{"turns": ["x", ""]}', "turn 2 of `turns`"),
    "an empty user message": (content(""), "message 1 of `messages` (user) is empty"),
    "an empty list of parts": (content([]), "is empty"),
    "an empty answer as context": (
        messages(("user", "x"), ("assistant", ""), ("user", "y")),
        "message 2 of `messages` (assistant) is empty",
    ),
    # types
    "a number as prompt": (b'{"prompt": 5}', "`prompt` is a number"),
    "an object as prompt": (b'{"prompt": {"a": 1}}', "`prompt` is an object"),
    "true as question": (b'{"question": true}', "`question` is true or false"),
    "a number as text": (b'{"text": 1.5}', "`text` is a number"),
    "a list as instruction input": (b'{"instruction": "x", "input": [1]}', "`input` is a list"),
    "an object as messages": (b'{"messages": {"role": "user"}}', "`messages` is an object"),
    "text as messages": (b'{"messages": "hello"}', "holds text that is not JSON"),
    "a number in text as messages": (b'{"messages": "5"}', "`messages` is a number"),
    "a python list in text": (
        row({"messages": "[{'role': 'user', 'content': 'x'}]"}),
        "holds text that is not JSON",
    ),
    "texts as messages": (b'{"messages": ["x", "y"]}', "is a list of texts"),
    "numbers as turns": (b'{"turns": [1, 2]}', "message 1 of `turns` is a number"),
    "mixed turns": (b'{"turns": ["x", 2]}', "message 1 of `turns` is text"),
    "mixed messages": (
        row({"messages": [USER, "and then"]}),
        "message 2 of `messages` is text, expected an object",
    ),
    "a null among the messages": (
        row({"messages": [USER, None]}),
        "message 2 of `messages` is null",
    ),
    "nested lists": (row({"messages": [[USER]]}), "message 1 of `messages` is a list"),
    "null content": (content(None), "has no content (it is null or absent)"),
    "no content": (b'{"messages": [{"role": "user"}]}', "has no content"),
    "a number as content": (content(7), "the content of message 1 of `messages` is a number"),
    "an object as content": (content({"text": "x"}), "is an object"),
    "a null part": (content([None]), "part 1 of message 1 of `messages` is null"),
    "a number as part": (content(["a", 3]), "part 2 of message 1"),
    "a part with null text": (content([{"type": "text", "text": None}]), "the text of part 1"),
    "a part without text": (content([{"type": "text"}]), "the text of part 1"),
    "nulls all the way down": (content([{"type": None, "text": None}]), "of type None"),
    "an image": (
        content([{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {}}]),
        "part 2 of message 1 of `messages` is of type 'image_url'; only text",
    ),
    "audio": (content([{"type": "input_audio", "input_audio": {}}]), "'input_audio'"),
    "a system column of numbers": (b'{"prompt": "x", "system": 5}', "`system` is a number"),
    # roles
    "an unknown role": (messages(("wizard", "x"), ("user", "y")), "unknown role 'wizard'"),
    "an empty role": (messages(("", "x")), "unknown role ''"),
    "a null role": (messages((None, "x")), "neither `role` nor `from`"),
    "a number as role": (messages((1, "x")), "the role of message 1 of `messages` is a number"),
    "a list as role": (messages((["user"], "x")), "is a list, expected text"),
    "no role": (b'{"messages": [{"content": "x"}]}', "neither `role` nor `from`"),
    "the old function role": (messages(("user", "x"), ("function", "y")), "'function'"),
    "a ShareGPT function call": (
        row({"conversations": [{"from": "human", "value": "x"}, {"from": "function_call"}]}),
        "unknown role 'function_call'",
    ),
    "a ShareGPT message without value": (
        b'{"conversations": [{"from": "human", "text2": "x"}]}',
        "message 1 of `conversations` has no content",
    ),
    "an unknown ShareGPT speaker": (
        b'{"conversations": [{"from": "narrator", "value": "x"}]}',
        "unknown role 'narrator'",
    ),
    "only a system message": (messages(("system", "be kind")), "no user turn"),
    "only an assistant": (messages(("assistant", "hello")), "no user turn"),
    # tools
    "a tool answer without id": (messages(("user", "x"), ("tool", "y")), "without `tool_call_id`"),
    "a tool answer to no call": (row({"messages": [USER, TOOL]}), "has the id 'c2'"),
    "a tool answer to another call": (
        row({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, TOOL]}),
        "no tool call before it has the id 'c2'",
    ),
    "tool calls that are an object": (calls({"a": 1}), "is an object, expected a list"),
    "tool calls that are text": (calls("call f"), "holds text that is not JSON"),
    "a tool call that is null": (calls([None]), "names no function"),
    "a tool call without function": (calls([{"id": "c1"}]), "tool call 1 of message 2"),
    "a tool call without id": (calls([{"function": {"name": "f"}}]), "has no id"),
    "tools that are an object": (row({"prompt": "x", "tools": {"a": 1}}), "`tools` is an object"),
    "tools that are text": (row({"prompt": "x", "tools": "none"}), "`tools` holds text"),
    "a tool that is text": (row({"prompt": "x", "tools": ["f"]}), "tool 1 of `tools` is text"),
    "NaN in tools": (b'{"prompt": "x", "tools": [{"a": NaN}]}', "`tools` is not JSON"),
}


@pytest.mark.parametrize("fault", ROWS)
def test_a_malformed_row_is_set_aside_with_its_line_and_reason(tmp_path: Path, fault: str) -> None:
    """The row is a reject that names line and fault, and the rows around it are prompts."""
    bad, reason = ROWS[fault]
    result = read(tmp_path, "d.jsonl", b"\n".join([GOOD[0], bad, GOOD[1], b""]))
    assert result.prompts == ["first good", "second good"]
    (reject,) = result.rejects
    assert reject["source"] == "d.jsonl"
    assert reject["line"] == 2
    assert reason in reject["reason"]
    assert len(reject["row"]) <= 2_000
    assert result.summary.rejected == 1
    assert sum(result.summary.reasons.values()) == 1


#: id → (options, the row, a part of its reason)
OPTIONS: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "column that is missing": (
        {"column": "prompt"},
        b'{"q": "x"}',
        "the column `prompt` is missing",
    ),
    "column that is null": ({"column": "prompt"}, b'{"prompt": null}', "`prompt` is null"),
    "column of a wrong type": ({"column": "prompt"}, b'{"prompt": 1}', "`prompt` is a number"),
    "template column that is missing": (
        {"template": "Say {prompt}"},
        b'{"q": "x"}',
        "the template's column `prompt` is missing; the row's columns: q",
    ),
    "template column that is null": (
        {"template": "Say {prompt}"},
        b'{"prompt": null}',
        "the template's column `prompt` is null",
    ),
    "template of nothing": ({"template": "{prompt}"}, b'{"prompt": " "}', "the filled template"),
    "tool calls to be written anew": (
        {"turns": "all"},
        row({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, TOOL]}),
        "tool calls, whose results answer the old calls",
    ),
}


@pytest.mark.parametrize("fault", OPTIONS)
def test_a_row_that_an_option_does_not_fit_is_set_aside(tmp_path: Path, fault: str) -> None:
    """With `column`, `template` or `turns` the reason names what the row lacks."""
    options, bad, reason = OPTIONS[fault]
    result = read(tmp_path, "d.jsonl", b"\n".join([GOOD[0], bad, GOOD[1]]), **options)
    assert len(result.prompts) == 2
    assert [reject["line"] for reject in result.rejects] == [2]
    assert reason in result.rejects[0]["reason"]


#: id → (file name, content, [(line, part of the reason)], prompts that survive)
JSONL = b"\n".join([*GOOD, b""])
NOISE = b"".join(row({"prompt": f"{n} {n * 7919 % 1000003}"}) + b"\n" for n in range(40_000))
FILES: dict[str, tuple[str, bytes, list[tuple[int, str]], int]] = {
    "JSONL without a last line break": ("d.jsonl", b"\n".join(GOOD), [], 2),
    "JSONL with blank lines": ("d.jsonl", b"\n\n".join(GOOD) + b"\n \n", [], 2),
    "JSONL with a byte-order mark": ("d.jsonl", b"\xef\xbb\xbf" + JSONL, [], 2),
    "JSONL with carriage returns": ("d.jsonl", JSONL.replace(b"\n", b"\r\n"), [], 2),
    "JSONL in UTF-16": ("d.jsonl", JSONL.decode().encode("utf-16"), [], 2),
    "JSONL in big-endian UTF-16": (
        "d.jsonl",
        b"\xfe\xff" + JSONL.decode().encode("utf-16-be"),
        [],
        2,
    ),
    "JSONL in UTF-32": ("d.jsonl", JSONL.decode().encode("utf-32"), [], 2),
    "JSONL in UTF-16 with half a pair": (
        "d.jsonl",
        ("\ufeff" + GOOD[0].decode() + '\n{"prompt": "\ud800"}\n' + GOOD[1].decode()).encode(
            "utf-16-le", "surrogatepass"
        ),
        [(2, "not UTF-8")],
        2,
    ),
    "UTF-16 with an odd last byte": (
        "d.jsonl",
        JSONL.decode().encode("utf-16") + b"x",
        [(3, "file truncated: the text is not utf-16")],
        2,
    ),
    "a gzip cut in the middle": (
        "d.jsonl.gz",
        gzip.compress(NOISE, mtime=0)[:-20_000],
        [(-1, "file truncated: the gzip data breaks off")],
        -1,
    ),
    "a gzip without its checksum": (
        "d.jsonl.gz",
        gzip.compress(JSONL)[:-8],
        [(3, "file truncated: the gzip data breaks off")],
        2,
    ),
    "a gzip with a wrong checksum": (
        "d.jsonl.gz",
        gzip.compress(JSONL)[:-8] + b"\0" * 8,
        [(3, "file truncated: the gzip data is corrupt")],
        2,
    ),
    "a gzip with garbage behind it": (
        "d.jsonl.gz",
        gzip.compress(JSONL) + b"garbage",
        [(3, "the gzip data is corrupt")],
        2,
    ),
    "a zstd cut in the middle": (
        "d.jsonl.zst",
        zstandard.compress(NOISE)[:-20_000],
        [(-1, "file truncated: the zstd data breaks off")],
        -1,
    ),
    "a bz2 cut in the middle": (
        "d.jsonl.bz2",
        bz2.compress(NOISE)[:-20_000],
        [(-1, "file truncated: the bz2 data breaks off")],
        -1,
    ),
    "an xz cut in the middle": (
        "d.jsonl.xz",
        lzma.compress(NOISE)[:-2_000],
        [(-1, "file truncated: the xz data breaks off")],
        -1,
    ),
    "a gzip in two parts": ("d.jsonl.gz", b"".join(gzip.compress(x + b"\n") for x in GOOD), [], 2),
    "a gzip named as plain": ("d.jsonl", gzip.compress(JSONL), [], 2),
    "plain text named as gzip": ("d.jsonl.gz", JSONL, [], 2),
    "JSONL named .json": ("d.json", JSONL, [], 2),
    "JSONL without a suffix": ("data", JSONL, [], 2),
    "an array named .jsonl": ("d.jsonl", b"[" + b",\n".join(GOOD) + b"]", [], 2),
    "JSONL that opens with a list": ("d.jsonl", b"[1]\n" + JSONL, [(1, "the row is a list")], 2),
    "JSONL named .csv": ("d.csv", JSONL, [], 2),
    "an array in an object": ("d.json", b'{"n": 2, "data": [' + b",".join(GOOD) + b"]}", [], 2),
    "an array cut in an element": (
        "d.json",
        b"[" + b",".join(GOOD) + b', {"prompt": "thi',
        [(3, "the file ends within the array")],
        2,
    ),
    "an array cut between elements": (
        "d.json",
        b"[" + b",".join(GOOD) + b",",
        [(3, "the file ends within the array")],
        2,
    ),
    "an array without its bracket": (
        "d.json",
        b"[" + b",".join([*GOOD, b'{"prompt": "third"}']),
        [(3, "the file ends within the array")],
        2,
    ),
    "an array with a last comma": ("d.json", b"[" + b",".join(GOOD) + b",]", [], 2),
    "an array with a hole": ("d.json", b"[" + b",,".join(GOOD) + b"]", [(2, "not JSON")], 2),
    "an array with a broken element": (
        "d.json",
        b"[" + GOOD[0] + b', {"prompt" "x"}, ' + GOOD[1] + b"]",
        [(2, "not JSON: Expecting ':'")],
        2,
    ),
    "an array with a number": ("d.json", b"[" + b", 5, ".join(GOOD) + b"]", [(2, "a number")], 2),
    "an array with latin-1": (
        "d.json",
        b"[" + b', {"prompt": "\xe9"}, '.join(GOOD) + b"]",
        [(2, "not UTF-8: 0xe9")],
        2,
    ),
    "CSV with too few fields": (
        "d.csv",
        b"id,prompt\n1,a\n2\n3,c\n",
        [(3, "1 fields, but the header has 2")],
        2,
    ),
    "CSV with too many fields": (
        "d.csv",
        b"id,prompt\n1,a\n2,b,b\n3,c\n",
        [(3, "3 fields, but the header has 2")],
        2,
    ),
    "CSV with an empty prompt": ("d.csv", b"id,prompt\n1,a\n2,\n3,c\n", [(3, "empty")], 2),
    "CSV with an unclosed quote": (
        "d.csv",
        b'id,prompt\n1,a\n2,"b\n3,c\n',
        [(3, "a quote is opened and never closed")],
        2,
    ),
    "CSV with text behind a quote": (
        "d.csv",
        b'id,prompt\n1,a\n2,"b" c\n3,c\n',
        [(3, "not CSV: ',' expected after '\"'")],
        2,
    ),
    "CSV with latin-1": ("d.csv", b"id,prompt\n1,a\n2,\xe9\n3,c\n", [(3, "not UTF-8: 0xe9")], 2),
    "CSV with a NUL": ("d.csv", b"id,prompt\n1,a\n2,b\0\n3,c\n", [(3, "NUL")], 2),
    "CSV with a bare carriage return": (
        "d.csv",
        b"id,prompt\n1,a\n2,b\rb\n3,c\n",
        [(3, "not CSV: new-line character")],
        2,
    ),
    "CSV with semicolons": ("d.csv", b"id;prompt\n1;a\n2;b, c\n", [], 2),
    "CSV with a quoted line break": ("d.csv", b'prompt\n"a\nb"\nc\n', [], 2),
    "CSV in UTF-16": ("d.csv", "prompt\na\nb\n".encode("utf-16"), [], 2),
    "TSV with too few fields": ("d.tsv", b"id\tprompt\n1\ta\n2\n3\tc\n", [(3, "1 fields")], 2),
    "a line beyond the limit": (
        "d.jsonl",
        GOOD[0] + b'\n{"prompt": "' + b"x" * (64 << 20) + b'"}\n' + GOOD[1],
        [(2, "the line is longer than 67,108,864 bytes")],
        2,
    ),
    "an element beyond the limit": (
        "d.json",
        b"[" + GOOD[0] + b', {"prompt": "' + b"x" * (64 << 20) + b'"}, ' + GOOD[1] + b"]",
        [(2, "the element is longer than 67,108,864 bytes")],
        2,
    ),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_malformed_file_gives_all_that_is_good_in_it(tmp_path: Path, fault: str) -> None:
    """What can be read of a file is read, and what cannot is set aside with its place.

    In the table, -1 stands for a line or count that depends on where the compression broke.
    """
    name, data, rejects, prompts = FILES[fault]
    result = read(tmp_path, name, data)
    if prompts >= 0:
        assert len(result.prompts) == prompts
    assert len(result.rejects) == len(rejects)
    for reject, (line, reason) in zip(result.rejects, rejects, strict=True):
        assert reject["line"] == (line if line > 0 else len(result.prompts) + 1)
        assert reason in reject["reason"]
    assert result.summary.rows_read == len(result.prompts) + len(result.rejects)


def parquet(table: pa.Table) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=2, compression="none")
    return target.getvalue()


GOOD_PARQUET = parquet(pa.table({"prompt": ["a", "b", "c"]}))
HTML = b"<html><body>404 Not Found</body></html>\n"

#: id → (file name, content, part of the message)
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "an empty JSONL": ("d.jsonl", b"", "the file is empty; write it again"),
    "an empty CSV": ("d.csv", b"", "the file is empty"),
    "an empty Parquet": ("d.parquet", b"", "the file is empty"),
    "an empty gzip": ("d.jsonl.gz", gzip.compress(b""), "the file holds no row"),
    "JSONL of white space": ("d.jsonl", b"\n \n\n", "the file holds no row"),
    "JSON of white space": ("d.json", b" \n", "not JSON"),
    "an empty array": ("d.json", b"[]", "the file holds no row"),
    "an array cut at once": ("d.json", b"[", "none of 1 rows can be used"),
    "a CSV of one header": ("d.csv", b"id,prompt\n", "the file holds no row"),
    "a CSV with an unclosed header": ("d.csv", b'id,"prompt\n1,a\n', "the header is not CSV"),
    "a CSV with an empty header": ("d.csv", b"\nid,prompt\n", "no header of column names"),
    "a CSV with one name twice": ("d.csv", b"a,a\n1,2\n", "names the column `a` twice"),
    "a CSV in UTF-16 without mark": (
        "d.csv",
        "id,prompt\n1,a\n".encode("utf-16-le"),
        "no header of column names in UTF-8",
    ),
    "a CSV without the prompt": ("d.csv", b"id,frage\n1,a\n", "columns: id, frage"),
    "JSON cut within an object": ("d.json", b'{"prompt": "x', "Unterminated string"),
    "JSON that is text": ("d.json", b"hello", "not JSON: Expecting value"),
    "JSON that is a number": ("d.json", b"42", "none of 1 rows can be used"),
    "JSON with text behind it": ("d.json", b"[" + GOOD[0] + b"] x", "text goes on after the end"),
    "JSON with two lists": (
        "d.json",
        b'{"a": [{}], "b": [{}]}',
        "two lists of objects, `a` and `b`",
    ),
    "JSON with a list of numbers": ("d.json", b'{"data": [1, 2]}', "columns: data"),
    "HTML named JSONL": ("d.jsonl", HTML, "none of 1 rows can be used; the first: d.jsonl:1: not"),
    "HTML named JSON": ("d.json", HTML, "not JSON: Expecting value"),
    "HTML named Parquet": ("d.parquet", HTML, "named as Parquet, but the file is not Parquet"),
    "HTML without a suffix": ("data", HTML, "unknown format; expected JSONL"),
    "a text file": ("d.txt", b"What is love?\n", "unknown format"),
    "a pickle": ("d.pkl", b"\x80\x04\x95", "unknown format"),
    "a zip": ("d.zip", b"PK\x03\x04", "unknown format"),
    "random bytes named JSONL": ("d.jsonl", bytes(range(128, 256)), "not UTF-8: 0x80"),
    "zeros named JSONL": ("d.jsonl", b"\0" * 4096, "4,096 NUL bytes"),
    "Parquet cut in the middle": (
        "d.parquet",
        GOOD_PARQUET[: len(GOOD_PARQUET) // 2],
        "cannot be read as Parquet, it may be cut",
    ),
    "Parquet with a broken footer": (
        "d.parquet",
        GOOD_PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1",
        "cannot be read as Parquet",
    ),
    "Parquet in gzip": ("d.parquet.gz", gzip.compress(GOOD_PARQUET), "unpack it"),
    "Parquet in gzip without saying so": ("d.jsonl", gzip.compress(GOOD_PARQUET), "unpack it"),
    "Parquet without rows": (
        "d.parquet",
        parquet(pa.table({"prompt": pa.array([], pa.string())})),
        "the file holds no row",
    ),
    "Parquet without the prompt": (
        "d.parquet",
        parquet(pa.table({"frage": ["x"]})),
        "columns: frage",
    ),
    "a gzip cut within its header": ("d.jsonl.gz", gzip.compress(b"x")[:6], "breaks off"),
    "no row of many is usable": ("d.jsonl", b'{"a": 1}\n' * 5, "none of 5 rows can be used"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_without_a_usable_row_is_a_clear_error(tmp_path: Path, fault: str) -> None:
    """Nothing is frozen, and the error names the file and the fault."""
    name, data, reason = REFUSED[fault]
    with pytest.raises(InputError) as error:
        read(tmp_path, name, data)
    assert reason in str(error.value)
    assert name in str(error.value)
    assert not (tmp_path / "run/prompts/D.parquet").exists()


def test_a_damaged_parquet_page_costs_its_row_group(tmp_path: Path) -> None:
    """The row groups around it are read, and the reject names the row where it begins."""
    table = pa.table({"prompt": [f"prompt number {n}" for n in range(6)]})
    target = io.BytesIO()
    pq.write_table(
        table, target, row_group_size=2, compression="none", use_dictionary=False,
        write_page_checksum=True,
    )  # fmt: skip
    data = bytearray(target.getvalue())
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(1).column(0)
    data[chunk.data_page_offset : chunk.data_page_offset + 8] = b"\xff" * 8
    result = read(tmp_path, "d.parquet", bytes(data))
    assert result.prompts == [f"prompt number {n}" for n in (0, 1, 4, 5)]
    assert [reject["line"] for reject in result.rejects] == [3]
    assert "row group 2 is damaged" in result.rejects[0]["reason"]


def test_a_parquet_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    """Parquet does not check its texts; a bad one is a reject with the row's number."""
    values = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, values.buffers())
    result = read(tmp_path, "d.parquet", parquet(pa.table({"prompt": texts})))
    assert result.prompts == ["a", "c"]
    assert [reject["line"] for reject in result.rejects] == [2]


#: id → (the path in the run file, part of the message)
PATHS = {
    "a file that is missing": ("nowhere.jsonl", "nowhere.jsonl: no such file"),
    "a glob that matches nothing": ("no*/**/*.jsonl", "no file matches in"),
    "a folder without data": ("empty", "the folder holds no JSONL"),
    "a URL": ("https://example.com/d.jsonl", "only local files are read"),
    "a hub address": ("hf://datasets/x/y", "only local files are read"),
    "a link to nothing": ("link.jsonl", "no such file"),
}


@pytest.mark.parametrize("fault", PATHS)
def test_a_path_that_names_no_file_is_a_clear_error(tmp_path: Path, fault: str) -> None:
    """The error says what was looked for, where, and what to do."""
    path, reason = PATHS[fault]
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(InputError) as error:
        freeze(Dataset(name="D", path=path), tmp_path, tmp_path, "a/b", Sampling(), seen=set())
    assert reason in str(error.value)


@pytest.mark.parametrize("fault", ROWS)
def test_strict_fails_at_the_first_malformed_row(tmp_path: Path, fault: str) -> None:
    """`--strict` names file and line, and leaves nothing frozen."""
    (tmp_path / "d.jsonl").write_bytes(b"\n".join([GOOD[0], ROWS[fault][0], GOOD[1]]))
    dataset = Dataset(name="D", path="d.jsonl")
    with pytest.raises(InputError, match=r"^d\.jsonl:2: "):
        freeze(dataset, tmp_path, tmp_path, "a/b", Sampling(), strict=True, seen=set())
    assert not list((tmp_path / "prompts").glob("*.parquet"))


def test_there_are_more_than_a_hundred_malformed_cases() -> None:
    """The suite stays as wide as it promises to be."""
    assert len(ROWS) + len(OPTIONS) + len(FILES) + len(REFUSED) + len(PATHS) >= 190
