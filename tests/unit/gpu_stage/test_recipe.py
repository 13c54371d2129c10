"""The recipe of a run: its digest, who may answer, whether the target thinks."""

import pickle
from pathlib import Path

import completions_kit as kit
import pytest

from fleet import run_config
from fleet.errors import ConfigError
from fleet.run_config import Sampling
from gpu_stage.recipe import allowed_providers, recipe_of


def digest(run: Path) -> str:
    """The digest of a run's recipe as its file stands."""
    return recipe_of(run_config.load(run / "run.toml")).digest


CHANGES = [
    "[tokens]\nnear_tokens = 3",
    "[tokens]\nnear_share = 0.01",
    "[tokens]\ntruncated = true",
    "[tokens]\nprompt_offsets = { Alpha = 9 }",
    "[tokens]\ncompletion_offsets = { Alpha = -1 }",
    "[sampling]\nreasoning = { enabled = false }",
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_shapes_a_sample_changes_the_digest(run: Path, model: Path, change: str) -> None:
    """Each of them would make other samples of the same completions."""
    before = digest(run)
    kit.write_run(run, model, change)
    assert digest(run) != before


def test_what_shapes_no_sample_leaves_the_digest(run: Path, model: Path) -> None:
    """A raised cap, or defaults spelt out, make nothing again."""
    before = digest(run)
    kit.write_run(run, model, "[tokens]\nnear_tokens = 2\n\n[sampling]\nmax_tokens = 9000")
    assert digest(run) == before


def test_who_may_answer_is_part_of_the_digest(run: Path) -> None:
    """A start that allows no other provider changes nothing; one that does, does."""
    digests = [digest(run)]
    for providers in (["Alpha"], ["Alpha"], ["Beta"]):
        kit.allow(run, *providers)
        digests.append(digest(run))
    assert digests[1] == digests[2] and len(set(digests)) == 3


def test_all_starts_of_a_run_count(run: Path) -> None:
    """Without a manifest everybody may have answered; refused endpoints never count."""
    assert allowed_providers(run) == frozenset()
    kit.allow(run, "Alpha")
    kit.allow(run, "Beta")
    assert allowed_providers(run) == {"Alpha", "Beta"}


@pytest.mark.parametrize("text", ["{", "[]", '{"sessions": [{}]}'])
def test_a_damaged_manifest_is_named(run: Path, text: str) -> None:
    """Nobody is let in by a file that cannot be read."""
    (run / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        digest(run)


def test_a_recipe_travels_to_other_processes(run: Path) -> None:
    """It is pickled as it is, and its renderer is loaded where it is used."""
    recipe = recipe_of(run_config.load(run / "run.toml"))
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe and copy.renderer().encode("ab") == recipe.renderer().encode("ab")


def test_a_run_without_a_target_is_told_how_to_name_one(run: Path) -> None:
    """The message has the key."""
    text = (run / "run.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("target")]
    (run / "run.toml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"run\.target is missing"):
        digest(run)


def test_a_target_without_a_tokenizer_is_refused(run: Path, tmp_path: Path) -> None:
    """The message has the key, the value and what is missing."""
    (tmp_path / "bare").mkdir()
    kit.write_run(run, tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"run\.target = .*bare.*no family recognises"):
        digest(run)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), True),
        (Sampling(reasoning={"enabled": True}), True),
        (Sampling(reasoning={"effort": "high"}), True),
        (Sampling(reasoning={"enabled": False}), False),
        (Sampling(reasoning={"effort": "none"}), False),
        (Sampling(extra={"chat_template_kwargs": {"thinking": False}}), False),
        (Sampling(extra={"chat_template_kwargs": {"enable_thinking": False}}), False),
    ],
)
def test_thinking_is_what_the_run_asked_for(sampling: Sampling, expected: bool) -> None:
    """On unless it was switched off, in OpenRouter's words or the template's."""
    assert sampling.thinking is expected


@pytest.mark.parametrize("line", ["near_tokens = -1", "near_share = 1.0", "near = 2"])
def test_a_wrong_key_or_value_of_the_table_is_refused(run: Path, model: Path, line: str) -> None:
    """The message names the key."""
    kit.write_run(run, model, f"[tokens]\n{line}")
    with pytest.raises(ConfigError, match=line.split()[0]):
        run_config.load(run / "run.toml")
