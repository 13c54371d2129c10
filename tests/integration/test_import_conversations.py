"""Conversations answered elsewhere, read into a run: to Kimi's ids, and into a training set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from samples_kit import MARKED, Row, read, write, write_run

import tokens
from fleet.errors import ConfigError, FleetError, InputError
from fleet.records import prompt_id
from fleet.schemas import COMPLETIONS
from gpu_stage.conversations import export_conversations, import_conversations
from gpu_stage.conversations.bring import Import
from gpu_stage.conversations.give import Export
from gpu_stage.merge import merge
from gpu_stage.merge.settings import load
from gpu_stage.samples import completion_parts, samples_of

KIMI = Path(__file__).parents[3] / "shared" / "data" / "kimi_tokenizer"
MODEL = "moonshotai/kimi-k2.5"
USER = {"role": "user", "content": "日本?"}
ANSWER = {"role": "assistant", "content": " Yes.", "reasoning_content": "Hm.\n"}
SPECFORGE = {"id": "1", "conversations": [USER, ANSWER], "status": "success"}
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "日本?"},
        {"from": "gpt", "value": "<think>Hm.\n</think> Yes."},
    ]
}
OPENAI = {"messages": [USER, ANSWER]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {
    "id": "functions.f:0",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a":1}'},
}


@pytest.fixture(scope="module")
def kimi() -> tokens.Renderer:
    """Kimi-K2.5 with its real tokenizer data."""
    if not KIMI.is_dir():
        pytest.skip("../shared/data/kimi_tokenizer is absent")
    return tokens.load(KIMI)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with nothing but its run file."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target = f'target = "{KIMI}"\n' if KIMI.is_dir() else ""
    head = f'[run]\nname = "elsewhere"\nmodel = "{MODEL}"\n{target}'
    (folder / "run.toml").write_text(f'{head}[[datasets]]\nname = "X"\npath = "x"\n')
    return folder


@pytest.fixture
def brought(run: Path) -> Callable[..., list[dict[str, Any]]]:
    """The completions that become of lines."""

    def bring(*rows: Any, **options: Any) -> list[dict[str, Any]]:
        path = run.parent / "in.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        import_conversations(Import([path], run, "X", **options))
        return read(run / "completions" / "dataset=X")

    return bring


def judged(kimi: tokens.Renderer, row: dict[str, Any]) -> tokens.Sample:
    """A completion as `gpu-stage tokens` judges it."""
    tools = json.loads(row["tools"]) if row["tools"] else None
    prompt = tokens.Prompt(json.loads(row["messages"]), tools)
    return tokens.verify(kimi, prompt, tokens.read_body(row["response"].encode()))


@pytest.mark.parametrize(
    "row", [SPECFORGE, SHAREGPT, OPENAI], ids=["specforge", "sharegpt", "openai"]
)
def test_texts_become_unverified_samples(
    brought: Callable[..., list[dict[str, Any]]], kimi: tokens.Renderer, row: dict[str, Any]
) -> None:
    """The ids are those of the template, and nothing says that they were sampled."""
    (completion,) = brought(row)
    assert (completion["content"], completion["reasoning"]) == (" Yes.", "Hm.\n")
    assert completion["prompt_id"] == prompt_id(
        MODEL, {"temperature": 1.0, "top_p": 1.0, "reasoning": None, "extra": {}}, [USER]
    )
    sample = judged(kimi, completion)
    assert sample.fidelity == tokens.Fidelity.UNVERIFIED
    assert kimi.decode(sample.input_ids).endswith("<think>Hm.\n</think> Yes.<|im_end|>")


def test_ids_that_come_with_a_line_are_exact_if_they_spell_it(
    brought: Callable[..., list[dict[str, Any]]], kimi: tokens.Renderer
) -> None:
    """Rows of ids alone are read back to text; a segmentation that was sampled is kept."""
    prefix = kimi.prefix(tokens.Prompt([USER]))
    letters = [n for letter in "Yes." for n in kimi.encode(letter)]
    ended = [*kimi.encode("Hm."), *kimi.completion(tokens.Answer(""))[:-1], *letters, kimi.end_id]
    ids = [*prefix, *ended]
    mask = [0] * len(prefix) + [1] * len(ended)
    (row,) = brought({"id": "a_gen0", "input_ids": ids, "loss_mask": mask})
    assert (row["content"], row["reasoning"], row["finish_reason"]) == ("Yes.", "Hm.", "stop")
    sample = judged(kimi, row)
    assert sample.fidelity == tokens.Fidelity.EXACT
    assert list(sample.input_ids) == ids
    assert sample.loss_spans == ((len(prefix), len(ids)),)


def test_ids_beside_messages_that_say_something_else_are_not_believed(
    brought: Callable[..., list[dict[str, Any]]], kimi: tokens.Renderer
) -> None:
    """The text decides, and with no counts it is unverified."""
    ids = [*kimi.prefix(tokens.Prompt([USER])), *kimi.encode("Something else"), kimi.end_id]
    mask = [0] * (len(ids) - 3) + [1] * 3
    (row,) = brought({**OPENAI, "input_ids": ids, "loss_mask": mask})
    assert judged(kimi, row).fidelity == tokens.Fidelity.UNVERIFIED


def test_counts_of_the_server_are_held_against_what_is_found(
    brought: Callable[..., list[dict[str, Any]]], kimi: tokens.Renderer
) -> None:
    """A line that says how many tokens there were is judged like a bought one."""
    prefix, text = (
        kimi.prefix(tokens.Prompt([USER])),
        kimi.completion(tokens.Answer(" Yes.", "Hm.\n")),
    )
    usage = {"prompt_tokens": len(prefix), "completion_tokens": len(text)}
    ids = {"input_ids": [*prefix, 1], "loss_mask": [0] * len(prefix) + [1]}
    metadata = {"finish_reason": "stop", "usage": usage}
    (row,) = brought({**OPENAI, **ids, "metadata": metadata})
    assert (row["prompt_tokens"], row["completion_tokens"]) == (len(prefix), len(text))
    assert judged(kimi, row).fidelity == tokens.Fidelity.COUNTED


def test_tools_and_their_calls_come_along(
    brought: Callable[..., list[dict[str, Any]]], kimi: tokens.Renderer
) -> None:
    """A call that the target made is written as the target writes calls."""
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    (row,) = brought({"messages": [USER, call], "tools": TOOLS})
    assert row["finish_reason"] == "tool_calls"
    text = kimi.decode(judged(kimi, row).input_ids)
    assert "functions.f:0" in text and text.count("namespace functions") == 1


TALK = [USER, ANSWER, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "No."}]


def test_the_last_answer_is_the_targets_unless_all_are(
    brought: Callable[..., list[dict[str, Any]]],
) -> None:
    """By default earlier answers are context, as in datasets that people wrote."""
    (row,) = brought({"conversations": TALK})
    assert (row["turn"], row["content"], len(json.loads(row["messages"]))) == (0, "No.", 3)


def test_all_answers_are_turns_of_one_conversation(
    brought: Callable[..., list[dict[str, Any]]],
) -> None:
    """Each turn is known by what came after the answer before, and by that answer's prompt."""
    first, second = brought({"conversations": TALK}, turns="all")
    assert [(row["turn"], row["content"]) for row in (first, second)] == [(0, " Yes."), (1, "No.")]
    sampling = {"temperature": 1.0, "top_p": 1.0, "reasoning": None, "extra": {}}
    assert second["prompt_id"] == prompt_id(MODEL, sampling, [TALK[2]], parent=first["prompt_id"])
    assert json.loads(second["messages"]) == TALK[:3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"text": "a"}', "none of the formats"),
        ('{"messages": []}', "no list of messages"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no answer"),
        ('{"messages": [{"content": "a"}]}', "message 1 is no object with a role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no user's message"),
        ('{"conversations": [{"from": "tool", "value": "a"}]}', "a message from 'tool'"),
        (json.dumps({**SPECFORGE, "status": "error"}), "its status is 'error'"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a surrogate pair"),
        ('{"input_ids": [1, 2], "loss_mask": [1]}', "not of one length"),
        ('{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]}', "not zeros and then ones"),
        ('{"input_ids": [1, 2], "loss_mask": [0, 0]}', "not zeros and then ones"),
        ('{"input_ids": [1, -2], "loss_mask": [0, 1]}', "no list of whole numbers"),
        ('{"input_ids": [1, 2], "loss_mask": [0, 1], "messages": "["}', "`messages`: not JSON"),
        (
            '{"input_ids": [1, 2], "loss_mask": [0, 1], "messages": "{\\"a\\": 1}"}',
            "`messages`: no list",
        ),
        (
            '{"input_ids": [1, 2], "loss_mask": [0, 1], "messages": "[\\"\\\\ud800\\"]"}',
            "`messages`: half a surrogate pair",
        ),
        (json.dumps(SPECFORGE), "an earlier line has answered"),
    ],
)
def test_a_line_that_cannot_be_used_is_set_aside_with_its_reason(
    run: Path, tmp_path: Path, line: str, reason: str
) -> None:
    """The others come in; lines = conversations + rejected."""
    path = tmp_path / "in.jsonl"
    path.write_text(f"{json.dumps(SPECFORGE)}\n\n{line}\n")
    done = import_conversations(Import([path], run, "X"))
    assert (done.lines, done.conversations, done.rejected.total()) == (2, 1, 1)
    (reject,) = map(
        json.loads, (run / "rejects" / "conversations-X.jsonl").read_text().splitlines()
    )
    assert reason in reject["reason"] and (reject["line"], reject["row"]) == (3, line)


def test_a_run_of_the_fleet_takes_no_imports(run: Path, tmp_path: Path) -> None:
    """Its ledger would not know them; and a dataset is imported once, whole."""
    path = tmp_path / "in.jsonl"
    path.write_text("not JSON\n")
    with pytest.raises(InputError, match="none of 1 lines can be used; the reasons are in"):
        import_conversations(Import([path], run, "X"))
    assert not list((run / "completions").iterdir())
    path.write_text(json.dumps(SPECFORGE))
    import_conversations(Import([path], run, "X"))
    with pytest.raises(ConfigError, match="dataset=X: is there already"):
        import_conversations(Import([path], run, "X"))
    (run / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="bought by the fleet"):
        import_conversations(Import([path], run, "Y"))
    with pytest.raises(FleetError, match=r"has no run\.toml"):
        import_conversations(Import([path], write_run(tmp_path / "bare", {"B": [Row()]}), "Y"))


def test_what_was_imported_fits_the_schema_and_is_merged_only_when_asked(
    brought: Callable[..., list[dict[str, Any]]], run: Path, kimi: tokens.Renderer
) -> None:
    """From another project's file to a training set, without the fleet."""
    brought({"conversations": TALK}, SHAREGPT, turns="all")
    (part,) = completion_parts(run)
    assert pq.read_schema(part).equals(COMPLETIONS)
    samples = [judged(kimi, row) for row in read(part.parent)]
    columns = [
        {
            "prompt_id": row["prompt_id"],
            "input_ids": list(sample.input_ids),
            "loss_spans": [{"start": a, "end": b} for a, b in sample.loss_spans],
            "prompt_length": sample.prompt_length,
            "completion_length": len(sample.input_ids) - sample.prompt_length,
            "fidelity": sample.fidelity,
            "finish_reason": sample.finish_reason,
        }
        for row, sample in zip(read(part.parent), samples, strict=True)
    ]
    write(samples_of(run, part), columns, MARKED)
    with pytest.raises(InputError, match="2 fidelity: unverified"):
        merge([run], run.parent / "set", load(_toml(run, "")))
    merge([run], run.parent / "set", load(_toml(run, '[filters]\nfidelity = ["unverified"]')))
    assert len(read(run.parent / "set" / "train")) == 2


def _toml(run: Path, text: str) -> Path:
    path = run.parent / "merge.toml"
    path.write_text(f"heldout_share = 0.0\n{text}")
    return path


@pytest.mark.parametrize("style", ["specforge", "openai", "sharegpt"])
def test_out_and_in_again_is_the_same_answer(run: Path, tmp_path: Path, style: str) -> None:
    """What a format carries, it carries whole: white space, scripts, reasoning, history."""
    rows = [
        Row(text=" a\n", content="\n b ", reasoning="\n\n c"),
        Row(text="\u202eרtl 👩‍👩‍👧 e\u0301", content="日本"),
        Row(messages=TALK[:3], content="No."),
    ]
    source = write_run(tmp_path / "bought", {"B1": rows})
    export_conversations(Export(source, style, tmp_path / "out.jsonl"))
    import_conversations(Import([tmp_path / "out.jsonl"], run, "X"))
    found = read(run / "completions" / "dataset=X")
    for row, back in zip(rows, found, strict=True):
        assert json.loads(back["messages"]) == row.sent()
        assert (back["content"], back["reasoning"]) == (row.content, row.reasoning)


@pytest.mark.parametrize(
    ("had", "has"),
    [("exact", "exact"), ("counted", "unverified"), ("unverified", "unverified")],
)
def test_ids_come_back_as_far_as_they_were_known(
    run: Path, tmp_path: Path, kimi: tokens.Renderer, had: str, has: str
) -> None:
    """Exported as speculators' rows and imported again, a sample has the very ids it had, and
    those that were made from text have not become sampled ones."""
    prefix = kimi.prefix(tokens.Prompt([USER]))
    text = kimi.completion(tokens.Answer(" Yes.", "Hm.\n"))
    row = Row(
        messages=[USER],
        content=" Yes.",
        reasoning="Hm.\n",
        prompt_ids=prefix,
        completion_ids=text,
        fidelity=had,
    )
    source = write_run(tmp_path / "bought", {"B1": [row]})
    export_conversations(Export(source, "speculators", tmp_path / "out.jsonl"))
    import_conversations(Import([tmp_path / "out.jsonl"], run, "X"))
    (back,) = read(run / "completions" / "dataset=X")
    sample = judged(kimi, back)
    assert (back["content"], back["reasoning"]) == (row.content, row.reasoning)
    assert json.loads(back["messages"]) == [USER]
    assert sample.fidelity == has
    assert list(sample.input_ids) == [*prefix, *text]


def test_tools_come_back_with_the_ids(run: Path, tmp_path: Path, kimi: tokens.Renderer) -> None:
    """They belong to the prompt: without them it would be another one."""
    prompt = {"prompt_ids": kimi.prefix(tokens.Prompt([USER], TOOLS)), "completion_ids": [1]}
    row = Row(messages=[USER], tools=TOOLS, content=None, tool_calls=[CALL], **prompt)
    source = write_run(tmp_path / "bought", {"B1": [row]})
    export_conversations(Export(source, "speculators", tmp_path / "out.jsonl"))
    import_conversations(Import([tmp_path / "out.jsonl"], run, "X"))
    (back,) = read(run / "completions" / "dataset=X")
    assert json.loads(back["tools"]) == TOOLS
    assert json.loads(back["tool_calls"]) == [CALL]
