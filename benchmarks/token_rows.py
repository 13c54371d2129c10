"""Completions in part files as the collector writes them, with answers as long as Kimi's.

In: the texts in `../shared/data`. Out: parts of a run, billed as many tokens as they have.
"""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tokens
from fleet.schemas import COMPLETIONS
from workers import parts

SHARED = Path(__file__).parents[2] / "shared" / "data"
KIMI = SHARED / "kimi_tokenizer"
#: Rows of a part: about the text that the collector puts into one.
PART_ROWS = 1_000
#: Texts of some 250 tokens that an answer is put together from, least and most.
REASONING_TEXTS, CONTENT_TEXTS = (4, 24), (1, 5)


def write_parts(run: Path, rows: int) -> None:
    """Completions in part files, billed as many tokens as they have."""
    renderer, chance = tokens.load(KIMI), random.Random(7)
    texts = pq.read_table(SHARED / "smollm2" / "faithful.parquet")["content"].to_pylist()
    questions = [
        json.loads(line)["question"]
        for line in (SHARED / "prompts" / "gsm8k_test.jsonl").read_text("utf-8").splitlines()
    ]
    folder = run / "completions/dataset=B1"
    for start in range(0, rows, PART_ROWS):
        made = []
        for number in range(start, min(start + PART_ROWS, rows)):
            reasoning, content = (
                "\n\n".join(chance.choices(texts, k=chance.randint(*least_most)))
                for least_most in (REASONING_TEXTS, CONTENT_TEXTS)
            )
            answer = tokens.Answer(content, reasoning)
            made.append(_values(renderer, number, chance.choice(questions), answer))
        size = sum(len(row[-1]) for row in made)
        parts.write(folder, COMPLETIONS, made, ((1, start), (1, start + len(made))), size)


def _values(
    renderer: tokens.Renderer, number: int, question: str, answer: tokens.Answer
) -> tuple[Any, ...]:
    messages = [{"role": "user", "content": question}]
    text, reasoning = answer.content, answer.reasoning
    detail = {"type": "reasoning.text", "text": reasoning, "format": "unknown", "index": 0}
    message = {"role": "assistant", "content": text, "reasoning": reasoning}
    usage = {
        "prompt_tokens": renderer.count_prefix(messages),
        "completion_tokens": len(renderer.completion(answer)),
    }
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
    reply = {
        "id": f"gen-{number}",
        "provider": "Chutes",
        "choices": [{**choice, "message": {**message, "reasoning_details": [detail]}}],
        "usage": usage,
    }
    columns = {
        "prompt_id": f"{number:032x}",
        "messages": json.dumps(messages),
        "content": text,
        "reasoning": reasoning,
        "provider": "Chutes",
        "endpoint": "chutes/int4",
        "finish_reason": "stop",
        "response": json.dumps(reply, ensure_ascii=False, separators=(",", ":")),
        "worker": "benchmark",
        **dict.fromkeys(("turn", "attempts", "requested_at", "completed_at"), 0),
        "latency_s": 1.0,
        **usage,
    }
    return tuple(columns.get(name) for name in COMPLETIONS.names)
