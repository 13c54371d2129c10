"""The answers of a training set as other projects read them: those of its rows, and no others."""

import json
from pathlib import Path
from typing import Any

import pytest
from samples_kit import Row, write_run

from fleet.errors import ConfigError
from gpu_stage.conversations import export_conversations
from gpu_stage.conversations.give import Export
from gpu_stage.merge import merge
from gpu_stage.merge.settings import MergeFile


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_set_gives_what_is_on_its_side(tmp_path: Path) -> None:
    """Train and held out are two files without a prompt in common, and nothing dropped in them."""
    rows = [Row(text=f"question {number}") for number in range(40)]
    runs = [
        write_run(tmp_path / "one", {"B1": rows}),
        write_run(
            tmp_path / "two", {"B1": [*rows[:5], Row(text="more"), Row(fidelity="rejected")]}
        ),
    ]
    merge(runs, tmp_path / "set", MergeFile(heldout_share=0.3))
    ids: dict[str, set[str]] = {}
    for side in ("train", "heldout"):
        out = tmp_path / f"{side}.jsonl"
        done = export_conversations(Export(tmp_path / "set", "specforge", out, (), side))
        ids[side] = {row["id"] for row in lines(out)}
        assert len(ids[side]) == done.written > 0
    assert not ids["train"] & ids["heldout"]
    assert len(ids["train"] | ids["heldout"]) == 41


def test_a_set_whose_run_has_moved_says_where_it_was(tmp_path: Path) -> None:
    """The set holds ids; the texts are in the run."""
    run = write_run(tmp_path / "run", {"B1": [Row(text="a"), Row(text="b")]})
    merge([run], tmp_path / "set", MergeFile(heldout_share=0.0))
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="its run run is not at"):
        export_conversations(Export(tmp_path / "set", "openai", tmp_path / "out.jsonl"))


def test_an_answer_that_another_dataset_gave_is_not_in_the_set(tmp_path: Path) -> None:
    """A prompt that two datasets of a run have bought goes out once, with the answer kept."""
    datasets = {
        "B1": [Row(text="same", content="left out", fidelity="near"), Row(text="a")],
        "B2": [Row(text="same", content="kept", fidelity="exact"), Row(text="b")],
    }
    run = write_run(tmp_path / "run", datasets)
    merge([run], tmp_path / "set", MergeFile(heldout_share=0.0))
    done = export_conversations(Export(tmp_path / "set", "openai", tmp_path / "out.jsonl"))
    answers = [row["messages"][-1]["content"] for row in lines(tmp_path / "out.jsonl")]
    assert sorted(answers) == ["It is.", "It is.", "kept"]
    assert (done.written, done.left_out) == (3, {"not in the set": 1})


def test_a_row_of_the_set_goes_out_once(tmp_path: Path) -> None:
    """Also where its dataset has the prompt twice."""
    run = write_run(tmp_path / "run", {"B1": [Row(text="same"), Row(text="a"), Row(text="same")]})
    merge([run], tmp_path / "set", MergeFile(heldout_share=0.0))
    done = export_conversations(Export(tmp_path / "set", "openai", tmp_path / "out.jsonl"))
    assert (done.written, done.left_out) == (2, {"not in the set": 1})
