"""How long prompts are: by the tokenizer if there is one, else by a rule of known error."""

import json
from pathlib import Path

import pytest

from fleet.run_config import Dataset, Sampling
from producer.freeze import freeze
from producer.prompt_sizes import SAMPLE, PromptSizes, estimate, make_counter, prompt_sizes
from tokens import Unrenderable

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
KIMI = SHARED / "kimi_tokenizer"


def sizes(folder: Path, rows: list[dict], count=None, **options) -> PromptSizes:
    """Freeze rows and look at them."""
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = Dataset(name="D", path="d.jsonl", **options)
    summary = freeze(dataset, folder, folder, "a/b", Sampling(), seen=set())
    counter = count or (lambda messages, tools: sum(len(m["content"]) for m in messages))
    return prompt_sizes(folder / "prompts" / "D.parquet", summary.prompts, counter)


def test_small_datasets_are_looked_at_whole(tmp_path: Path) -> None:
    """The mean is that of all prompts."""
    found = sizes(tmp_path, [{"prompt": "a" * n} for n in (10, 20, 60)])
    assert found == PromptSizes(3, 3, 30.0, 0.0, 0)


def test_large_datasets_are_sampled_evenly(tmp_path: Path) -> None:
    """The end of the file counts as much as its beginning."""
    rows = [{"prompt": f"{n:06d}" + "a" * (n // 100)} for n in range(5 * SAMPLE)]
    found = sizes(tmp_path, rows)
    assert SAMPLE <= found.looked_at <= SAMPLE + 1
    assert found.mean_tokens == pytest.approx(6 + 5 * SAMPLE / 200, rel=0.02)


def test_later_turns_hold_what_came_before(tmp_path: Path) -> None:
    """Each turn is a request with all earlier questions, and the answers to them."""
    talk = {
        "messages": [
            {"role": "user", "content": "aaaa"},
            {"role": "assistant", "content": "old"},
            {"role": "user", "content": "bb"},
        ]
    }
    found = sizes(tmp_path, [talk], turns="all")
    assert (found.prompts, found.mean_tokens, found.answers_before) == (2, 5.0, 0.5)


def test_what_no_tokenizer_counts_is_estimated_and_said(tmp_path: Path) -> None:
    """One prompt with a picture does not stop the plan."""

    def refuse(messages, tools):
        raise Unrenderable("a picture")

    found = sizes(tmp_path, [{"prompt": "a" * 40}], refuse)
    assert (found.not_counted, found.mean_tokens) == (1, 40 / 4 + 8)


def test_without_a_tokenizer_it_says_so_and_how_good_the_estimate_is(tmp_path: Path) -> None:
    """No folder, or one without a tokenizer: the reason stands beside the error."""
    assert "run.target names no folder" in make_counter(None).how
    counter = make_counter(tmp_path)
    assert counter.count is estimate
    assert str(tmp_path) in counter.how and "within 15 %" in counter.how


@pytest.mark.skipif(not KIMI.exists(), reason="needs ../shared/data/kimi_tokenizer")
@pytest.mark.parametrize("name", ["gsm8k_test", "humaneval", "specbench"])
def test_the_estimate_is_as_good_as_it_says(tmp_path: Path, name: str) -> None:
    """Each test set within 15 % of Kimi's own count."""
    source = SHARED / "prompts" / f"{name}.jsonl"
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    counter = make_counter(KIMI)
    assert "kimi" in counter.how
    counted = sizes(tmp_path, rows, counter.count)
    (tmp_path / "again").mkdir()
    estimated = sizes(tmp_path / "again", rows, estimate)
    assert estimated.mean_tokens == pytest.approx(counted.mean_tokens, rel=0.15)
