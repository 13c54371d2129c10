"""Answers as other projects read them: by their rules, and what each format cannot carry."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from samples_kit import Row, write_run

from fleet.errors import ConfigError, InputError
from gpu_stage.conversations import export_conversations
from gpu_stage.conversations.give import Export, Exported

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "日本 👩‍👩‍👧?"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
PLAIN = Row(messages=[SYSTEM, USER], content=" Yes.\n")
THOUGHT = Row(text="Think.", content="So.", reasoning=" Hm.\n\nWell. ")
LATER = Row(
    messages=[USER, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}],
    content="C",
    turn=1,
)
CALLED = Row(
    text="Call.",
    content=None,
    reasoning="I call.",
    tools=TOOLS,
    tool_calls=[CALL],
    finish_reason="tool_calls",
)
CUT = Row(text="Long.", content="Once upon", finish_reason="length")
ROWS = (PLAIN, THOUGHT, LATER, CALLED, CUT)


def export(tmp_path: Path, style: str, rows: Sequence[Row] = ROWS, **options: Any) -> Exported:
    run = write_run(tmp_path / "run", {"B1": rows})
    return export_conversations(Export(run, style, tmp_path / "out.jsonl", **options))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def loaded(path: Path) -> list[dict[str, Any]]:
    """The rows as `datasets` gives them to the projects that read through it."""
    cache = str(path.parent / "cache")
    return list(datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache))


def test_specforge_reads_role_content_and_reasoning(tmp_path: Path) -> None:
    """Known roles, text in every message, the user first and in turn with the assistant."""
    done = export(tmp_path, "specforge")
    rows = loaded(tmp_path / "out.jsonl")
    for row in rows:
        assert set(row) == {"id", "conversations"}
        said = [m for m in row["conversations"] if m["role"] != "system"]
        assert [m["role"] for m in said] == ["user", "assistant"] * (len(said) // 2)
        assert all(isinstance(m["content"], str) for m in row["conversations"])
    plain, thought, later = (row["conversations"] for row in rows)
    assert [m["content"] for m in plain] == ["Be brief.", "日本 👩‍👩‍👧?", " Yes.\n"]
    assert thought[-1]["reasoning_content"] == " Hm.\n\nWell. "
    assert [m["content"] for m in later] == ["日本 👩‍👩‍👧?", "A", "B", "C"]
    assert [row["id"] for row in rows] == [row.prompt_id for row in (PLAIN, THOUGHT, LATER)]
    assert (done.written, done.left_out) == (3, {"tools": 1, "truncated": 1})


def test_sharegpt_has_one_text_for_thought_and_answer(tmp_path: Path) -> None:
    """People and the model take turns, in `from` and `value`; a thought stands in its tags."""
    done = export(tmp_path, "sharegpt")
    rows = loaded(tmp_path / "out.jsonl")
    for row in rows:
        names = [m["from"] for m in row["conversations"] if m["from"] != "system"]
        assert names == ["human", "gpt"] * (len(names) // 2)
        assert all(set(m) == {"from", "value"} for m in row["conversations"])
    assert rows[1]["conversations"][-1]["value"] == "<think> Hm.\n\nWell. </think>So."
    assert (done.written, done.left_out) == (3, {"tools": 1, "truncated": 1})


@pytest.mark.parametrize(
    "row",
    [Row(content="<think>not a thought"), Row(reasoning="a </think> in it")],
    ids=["content", "reasoning"],
)
def test_sharegpt_cannot_carry_what_looks_like_a_thought(tmp_path: Path, row: Row) -> None:
    """It would be read back as another answer, so it is left out and counted."""
    done = export(tmp_path, "sharegpt", [row])
    assert (done.written, done.left_out.total()) == (0, 1)


def test_openai_has_tools_and_their_calls(tmp_path: Path) -> None:
    """A call has an id, a function's name and arguments as JSON text; answers to it follow it."""
    result = {"role": "tool", "tool_call_id": "f:0", "content": "1"}
    asked = {"role": "user", "content": "Call."}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    loop = Row(messages=[asked, call, result], content="One.", tools=TOOLS)
    done = export(tmp_path, "openai", [*ROWS, loop])
    rows = lines(tmp_path / "out.jsonl")
    for row in rows:
        called: set[str] = set()
        for message in row["messages"]:
            assert message["role"] in {"system", "user", "assistant", "tool"}
            for made in message.get("tool_calls", []):
                assert made["type"] == "function" and json.loads(made["function"]["arguments"])
                called.add(made["id"])
            assert message["role"] != "tool" or message["tool_call_id"] in called
        assert row["messages"][-1]["role"] == "assistant"
    assert rows[3]["messages"][-1]["tool_calls"] == [CALL]
    assert rows[3]["messages"][-1]["reasoning_content"] == "I call."
    assert rows[3]["tools"] == rows[4]["tools"] == TOOLS
    assert rows[4]["messages"][:3] == [asked, call, result]
    assert "tools" not in rows[0]
    assert (done.written, done.left_out) == (5, {"truncated": 1})


def test_speculators_rows_are_ids_and_a_mask_of_one_length(tmp_path: Path) -> None:
    """They pass its preparation untouched: nothing is rendered or tokenised again."""
    row = Row(prompt_ids=[7, 8], completion_ids=[9, 10, 11])
    done = export(tmp_path, "speculators", [row, *ROWS])
    rows = loaded(tmp_path / "out.jsonl")
    assert all(len(r["input_ids"]) == len(r["loss_mask"]) for r in rows)
    assert rows[0]["input_ids"] == [7, 8, 9, 10, 11]
    assert rows[0]["loss_mask"] == [0, 0, 1, 1, 1]
    reasons = [r["metadata"]["finish_reason"] for r in rows]
    assert reasons == ["stop", "stop", "stop", "stop", "tool_calls", "length"]
    assert rows[4]["metadata"]["is_tool_call"]
    assert [r["id"] for r in rows] == [r.prompt_id for r in (row, *ROWS)]
    assert len({r["primary_id"] for r in rows}) == 6
    assert (done.written, done.left_out) == (6, {})


def test_speculators_rows_hold_their_messages_as_text(tmp_path: Path) -> None:
    """Messages of any shape lie in one column, and say which prompt a row of ids answers."""
    parts = Row(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}])
    export(tmp_path, "speculators", [PLAIN, parts, CALLED])
    plain, listed, called = loaded(tmp_path / "out.jsonl")
    answer = {"role": "assistant", "content": " Yes.\n"}
    assert json.loads(plain["messages"]) == [SYSTEM, USER, answer]
    assert json.loads(listed["messages"])[0] == parts.sent()[0]
    assert json.loads(called["messages"])[-1]["tool_calls"] == [CALL]
    assert json.loads(called["messages"])[-1]["reasoning_content"] == "I call."
    assert [json.loads(row["tools"]) for row in (plain, listed, called)] == [[], [], TOOLS]


@pytest.mark.parametrize("style", ["specforge", "openai", "sharegpt"])
def test_what_was_cut_off_is_left_out_where_it_cannot_be_said(tmp_path: Path, style: str) -> None:
    """A reader would take it for a whole answer and teach an end that was not written."""
    rows = [CUT, Row(text="b", finish_reason=None), Row(text="c", finish_reason="content_filter")]
    done = export(tmp_path, style, rows)
    assert (done.written, done.left_out) == (0, {"truncated": 1, "unfinished": 2})


def test_fidelity_chooses_and_rejected_answers_stay_behind(tmp_path: Path) -> None:
    """Without a choice all but the rejected go; each that stays is counted under its fidelity."""
    rows = [Row(text=name, fidelity=name) for name in ("exact", "counted", "near", "rejected")]
    done = export(tmp_path, "openai", rows)
    assert (done.written, done.left_out) == (3, {"fidelity: rejected": 1})
    (tmp_path / "out.jsonl").unlink()
    done = export(tmp_path, "openai", rows, fidelity=["exact", "counted"])
    assert (done.written, done.left_out) == (2, {"fidelity: near": 1, "fidelity: rejected": 1})


def test_without_samples_texts_go_and_ids_cannot(tmp_path: Path) -> None:
    """The message names the command that makes them."""
    run = write_run(tmp_path / "run", {"B1": ROWS})
    next(run.glob("samples/*/*")).unlink()
    done = export_conversations(Export(run, "specforge", tmp_path / "texts.jsonl"))
    assert done.written == 3
    for asked in (
        Export(run, "speculators", tmp_path / "ids.jsonl"),
        Export(run, "openai", tmp_path / "ids.jsonl", ["exact"]),
    ):
        with pytest.raises(InputError, match="run `gpu-stage tokens"):
            export_conversations(asked)
    assert not list(tmp_path.glob("*ids.jsonl*"))


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    """Nor is a wrong name taken for a format or a fidelity."""
    export(tmp_path, "openai")
    with pytest.raises(ConfigError, match="is there already"):
        export(tmp_path, "openai")
    with pytest.raises(ConfigError, match="--format alpaca: known are"):
        export(tmp_path, "alpaca")
    with pytest.raises(ConfigError, match="--fidelity sure: known are"):
        export(tmp_path, "openai", fidelity=["sure"])
