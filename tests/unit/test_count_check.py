"""Whether bills have the counts that the tokenizer finds, by endpoint and by dataset."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokens
from fleet import run_config
from fleet.schemas import COMPLETIONS
from producer.count_check import check_counts

KIMI = Path(__file__).parents[2] / ".." / "shared" / "data" / "kimi_tokenizer"
RUN = """
[run]
name = "counts"
model = "moonshotai/kimi-k2.5"
[[datasets]]
name = "B1"
path = "B1.jsonl"
"""


@pytest.fixture(scope="module")
def kimi() -> tokens.Renderer:
    """Kimi-K2.5's own tokenizer."""
    if not KIMI.is_dir():
        pytest.skip("needs ../shared/data/kimi_tokenizer")
    return tokens.load(KIMI)


def answer(kimi: tokens.Renderer, number: int, endpoint: str, **off: int) -> dict[str, Any]:
    """A row as the collector writes it, billed with so many tokens more than it has."""
    messages = [{"role": "user", "content": f"Question {number}?"}]
    content = f"Answer {number}."
    billed = {
        "prompt_tokens": len(kimi.prefix(tokens.Prompt(messages))) + off.get("prompt", 0),
        "completion_tokens": len(kimi.completion(tokens.Answer(content, "Hm.")))
        + off.get("completion", 0),
    }
    message = {"role": "assistant", "content": content, "reasoning": "Hm."}
    response = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": billed}
    now = datetime(2026, 12, 1, tzinfo=UTC)
    return {
        "prompt_id": f"{number:032x}",
        "turn": 0,
        "messages": json.dumps(messages),
        "attempts": 1,
        "latency_s": 1.0,
        "requested_at": now,
        "completed_at": now,
        "worker": "w",
        "endpoint": endpoint,
        "response": json.dumps(response),
    }


def check(folder: Path, kimi: tokens.Renderer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the rows as a part of B1, and check them."""
    (folder / "B1.jsonl").touch()
    (folder / "run.toml").write_text(RUN)
    config = run_config.load(folder / "run.toml")
    part = config.directory / "completions" / "dataset=B1" / "part-1-0-a.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, COMPLETIONS), part)
    return check_counts(config, kimi)


def test_answers_whose_counts_are_off_are_counted_by_endpoint_and_by_dataset(
    tmp_path: Path, kimi: tokens.Renderer
) -> None:
    """One in four is off at one endpoint, none at the other."""
    rows = [answer(kimi, n, "a/int4", completion=int(n % 4 == 0)) for n in range(12)]
    rows += [answer(kimi, n, "b/int4") for n in range(12, 18)]
    found = check(tmp_path, kimi, rows)
    assert {name: (a.off, a.compared) for name, a in found["endpoint"].items()} == {
        "a/int4": (3, 12),
        "b/int4": (0, 6),
    }
    assert found["dataset"]["B1"].off == 3
    assert not found["endpoint"]["a/int4"].constants()


def test_a_constant_is_named(tmp_path: Path, kimi: tokens.Renderer) -> None:
    """An endpoint that does not bill the end token, and one with another template."""
    rows = [answer(kimi, n, "a/int4", completion=-1) for n in range(10)]
    rows += [answer(kimi, n, "b/int4", prompt=7) for n in range(10, 20)]
    found = check(tmp_path, kimi, rows)["endpoint"]
    assert found["a/int4"].constants() == ["completions billed with -1 tokens in 10 of 10"]
    assert found["b/int4"].constants() == ["prompts billed with +7 tokens in 10 of 10"]


def test_answers_that_cannot_be_compared_are_left_out(
    tmp_path: Path, kimi: tokens.Renderer
) -> None:
    """Without usage, and an error that was paid for."""
    rows = [answer(kimi, n, "a/int4") for n in range(3)]
    rows[0]["response"] = json.dumps({"error": {"message": "no"}})
    rows[1]["response"] = json.dumps({**json.loads(rows[1]["response"]), "usage": None})
    found = check(tmp_path, kimi, rows)["endpoint"]["a/int4"]
    assert (found.off, found.compared) == (0, 1)
