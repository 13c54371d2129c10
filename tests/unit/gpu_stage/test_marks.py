"""Samples that were made in different ways do not go into one set."""

import json
from collections.abc import Callable
from pathlib import Path

import completions_kit as kit
import pyarrow.parquet as pq
import pytest

from fleet import run_config
from fleet.errors import InputError
from gpu_stage.conversations import export_conversations
from gpu_stage.conversations.give import Export
from gpu_stage.merge import merge
from gpu_stage.merge.settings import MergeFile
from gpu_stage.recipe import recipe_of
from gpu_stage.samples import samples_of
from gpu_stage.tokenise import Outcome, tokenise

Make = Callable[[Path], Outcome]
ALL = MergeFile(heldout_share=0.0)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with another tokenizer: its template ends a message in another way."""
    folder = kit.write_model(tmp_path / "other-model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|im_end|>", "<|im_end|> ")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def make_samples(run: Path) -> None:
    recipe = recipe_of(run_config.load(run / "run.toml"))
    for part in sorted(run.glob("completions/*/*.parquet")):
        tokenise(run, part, recipe, lambda *_: None)


def test_runs_of_two_tokenizers_are_not_merged(
    run: Path, model: Path, other: Path, tmp_path: Path
) -> None:
    """Both are named, and what to do; with one tokenizer and samples made anew they go together."""
    second = kit.write_run(tmp_path / "second", other)
    parts = [kit.write_part(folder, [kit.row(n)]) for n, folder in enumerate((run, second))]
    make_samples(run)
    make_samples(second)
    names = "(?s){}.*{}".format(*(samples_of(d, p) for d, p in zip((run, second), parts, strict=1)))
    with pytest.raises(InputError, match=f"{names}.*`target`.*`gpu-stage tokens`"):
        merge([run, second], tmp_path / "set", ALL)
    kit.write_run(second, model)
    make_samples(second)
    assert merge([run, second], tmp_path / "set", ALL)["overall"]["read"]["rows"] == 2


def test_a_run_with_stale_parts_is_made_up_to_date_first(
    run: Path, make: Make, model: Path, other: Path, tmp_path: Path
) -> None:
    """Neither merged nor written as ids; texts go out all the same."""
    parts = [kit.write_part(run, [kit.row(0)])]
    make(parts[0])
    kit.write_run(run, other)
    parts.append(kit.write_part(run, [kit.row(1)]))
    make(parts[1])
    message = rf"{samples_of(run, parts[0])} .*{parts[1].name}.*`gpu-stage tokens {run}`"
    with pytest.raises(InputError, match=message):
        merge([run], tmp_path / "set", ALL)
    with pytest.raises(InputError, match=message):
        export_conversations(Export(run, "speculators", tmp_path / "ids.jsonl"))
    assert export_conversations(Export(run, "openai", tmp_path / "texts.jsonl")).written == 2
    kit.write_run(run, model)
    make_samples(run)
    merge([run], tmp_path / "set", ALL)
    assert export_conversations(Export(run, "speculators", tmp_path / "ids.jsonl")).written == 2


def test_a_set_whose_samples_are_of_two_tokenizers_by_now_gives_no_ids(
    run: Path, other: Path, tmp_path: Path
) -> None:
    """The runs were of one when they were merged."""
    second = kit.write_run(tmp_path / "second", run_config.load(run / "run.toml").target or run)
    for number, folder in enumerate((run, second)):
        kit.write_part(folder, [kit.row(number)])
        make_samples(folder)
    merge([run, second], tmp_path / "set", ALL)
    kit.write_run(second, other)
    make_samples(second)
    with pytest.raises(InputError, match="two tokenizers"):
        export_conversations(Export(tmp_path / "set", "speculators", tmp_path / "ids.jsonl"))


def test_samples_that_do_not_say_their_tokenizer_are_made_again(
    run: Path, make: Make, tmp_path: Path
) -> None:
    """Nothing is known of them: `gpu-stage tokens` does not take them for its own."""
    part = kit.write_part(run, [kit.row(0)])
    make(part)
    path = samples_of(run, part)
    table = pq.read_table(path, partitioning=None)
    marks = {k: v for k, v in table.schema.metadata.items() if k != b"eagle_fleet.tokenizer"}
    pq.write_table(table.replace_schema_metadata(marks), path)
    with pytest.raises(InputError, match=r"does not say .*`gpu-stage tokens"):
        merge([run], tmp_path / "set", ALL)
    assert make(part) is Outcome.MADE
    merge([run], tmp_path / "set", ALL)
