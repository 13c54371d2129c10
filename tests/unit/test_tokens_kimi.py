"""Kimi-K2.5 against recorded exchanges: what a provider billed is what the renderer counts."""

import json
from pathlib import Path

import pytest

import tokens

DATA = Path(__file__).parents[3] / "shared" / "data"
SAMPLES = DATA / "openrouter_samples"
pytestmark = pytest.mark.skipif(
    not (DATA / "kimi_tokenizer").is_dir(), reason="the Kimi tokenizer (../shared) is absent"
)


@pytest.fixture(scope="module")
def kimi() -> tokens.Renderer:
    """The renderer of the real tokenizer data."""
    return tokens.load(DATA / "kimi_tokenizer")


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.request.json")))
def test_prompts_count_as_they_were_billed(kimi: tokens.Renderer, name: str) -> None:
    """Every recorded request has exactly the prompt tokens of its response."""
    request = json.loads((SAMPLES / name).read_bytes())
    body = (SAMPLES / name.replace(".request.json", ".response.body")).read_text()
    billed = int(body.rpartition('"prompt_tokens":')[2].partition(",")[0])
    assert kimi.count_prefix(request["messages"], request.get("tools")) == billed
