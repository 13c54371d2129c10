"""Conversations from elsewhere on their whole way: read in, made into samples, merged."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import completions_kit as kit
import pytest
from samples_kit import Row, read, write_run

import tokens
from fleet import run_config
from gpu_stage.conversations import export_conversations, import_conversations
from gpu_stage.conversations.bring import Import
from gpu_stage.conversations.give import Export
from gpu_stage.merge import merge
from gpu_stage.merge.scatter import SIDES
from gpu_stage.merge.settings import Filters, MergeFile
from gpu_stage.samples import completion_parts
from gpu_stage.token_run import tokenise, tokenise_here

USER = {"role": "user", "content": "Why?"}
Bring = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder whose tokenizer has a token for every byte."""
    return kit.write_model(tmp_path / "model")


@pytest.fixture
def bring(tmp_path: Path, model: Path) -> Bring:
    """Import a file into a new run, and make its samples."""

    def make(path: Path, name: str = "elsewhere", more: str = "") -> Path:
        run = kit.write_run(tmp_path / name, model, more)
        import_conversations(Import([path], run, "B3"))
        make_samples(run)
        return run

    return make


def make_samples(run: Path) -> None:
    config = run_config.load(run / "run.toml")
    tokenise(config, partial(tokenise_here, processes=1))


def samples(run: Path) -> list[dict[str, Any]]:
    return [row for part in completion_parts(run) for row in kit.samples(run, part)]


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("messages", [True, False], ids=["beside messages", "alone"])
@pytest.mark.parametrize(("end", "reason"), [(True, "stop"), (False, "length")])
def test_ids_say_how_an_answer_ended_where_nothing_else_does(
    bring: Bring, model: Path, tmp_path: Path, messages: bool, end: bool, reason: str
) -> None:
    """Ids that were cut off stay as they are: no end is added that the target did not write."""
    renderer = tokens.load(model)
    prefix = renderer.prefix(tokens.Prompt([USER]))
    written = [*renderer.encode("Because"), *([renderer.end_id] if end else [])]
    row: dict[str, Any] = {"input_ids": [*prefix, *written]}
    row["loss_mask"] = [0] * len(prefix) + [1] * len(written)
    if messages:
        row["messages"] = [USER, {"role": "assistant", "content": "Because"}]
    path = write_lines(tmp_path / "in.jsonl", row)
    (sample,) = samples(bring(path, more="[tokens]\ntruncated = true"))
    assert (sample["fidelity"], sample["finish_reason"]) == ("exact", reason)
    assert sample["input_ids"] == [*prefix, *written]


def talk(number: int) -> list[Row]:
    """A conversation of three turns that the target wrote."""
    messages, rows = [], []
    for turn in range(3):
        messages.append({"role": "user", "content": f"talk {number:02} turn {turn}?"})
        rows.append(Row(messages=list(messages), turn=turn, content=f"reply {turn}"))
        messages.append({"role": "assistant", "content": f"reply {turn}"})
    return rows


@pytest.mark.parametrize("style", ["openai", "specforge", "sharegpt"])
def test_the_lines_of_one_conversation_lie_on_one_side(
    bring: Bring, model: Path, tmp_path: Path, style: str
) -> None:
    """Exported one line an answer, each imported for its last one, they go to one side together."""
    bought = write_run(tmp_path / "bought", {"B3": [row for n in range(30) for row in talk(n)]})
    export_conversations(Export(bought, style, tmp_path / "out.jsonl"))
    run = bring(tmp_path / "out.jsonl")
    settings = MergeFile(heldout_share=0.3, filters=Filters(fidelity=("unverified",)))
    merge([run], tmp_path / "set", settings)
    decode = tokens.load(model).decode
    talks = {
        side: [
            decode(row["input_ids"]).split("talk ")[1][:2] for row in read(tmp_path / "set" / side)
        ]
        for side in SIDES
    }
    assert sum(map(len, talks.values())) == 90
    assert talks["heldout"] and not set(talks["train"]) & set(talks["heldout"])


def bought_rows(count: int) -> list[dict[str, Any]]:
    """Completions of as many questions, billed as they count."""
    rows = []
    for number in range(count):
        question = f"Question {number} about the sky?"
        usage = {"prompt_tokens": len(f"|user\n{question}|\n|assistant\n"), "completion_tokens": 13}
        row = kit.row(number, messages=json.dumps([{"role": "user", "content": question}]))
        row["response"] = json.dumps(json.loads(row["response"]) | {"usage": usage})
        rows.append(row | usage)
    return rows


def test_rows_of_ids_are_known_again_as_the_prompts_they_answer(
    bring: Bring, model: Path, tmp_path: Path
) -> None:
    """Exported for speculators and imported again, no row is trained on twice, and none that is
    held out is trained on by its other name."""
    bought = kit.write_run(tmp_path / "bought", model)
    kit.write_part(bought, bought_rows(40))
    make_samples(bought)
    export_conversations(Export(bought, "speculators", tmp_path / "out.jsonl"))
    run = bring(tmp_path / "out.jsonl")
    assert [row["fidelity"] for row in samples(run)] == ["counted"] * 40
    record = merge([bought, run], tmp_path / "set", MergeFile(heldout_share=0.3))
    assert record["overall"]["dropped"] == {"same messages": 40}
    alone = merge([run], tmp_path / "alone", MergeFile(heldout_share=0.3))
    for side in SIDES:
        assert alone["overall"][side] | {"cost_usd": 0} == record["overall"][side] | {"cost_usd": 0}
