"""Completions to token ids: `gpu-stage tokens` beside a Hugging Face loop and bare tiktoken.

Part files as the collector writes them, with answers as long as Kimi's, made of the texts in
`../shared/data`; Kimi's tokenizer. Three ways over the same rows:

    fleet     `gpu-stage tokens RUN`, from the start of the command to its end
    loop      what one would write: rows from Parquet, chat template, fast tokenizer, to Parquet;
              over the first part, since it is slow
    tiktoken  `encode_ordinary_batch` over the texts alone, in memory: the limit
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

import tokens
from fleet.schemas import COMPLETIONS
from gpu_stage.sample_file import sizes
from tokens.families.kimi import DATA as TIKTOKEN_FILE
from tokens.families.kimi import PATTERN
from tokens.folder import Folder
from tokens.tiktoken_codec import read_ranks
from workers import parts

SHARED = Path(__file__).parents[2] / "shared" / "data"
KIMI = SHARED / "kimi_tokenizer"
CORES = 2
REPEATS = 3
#: Rows of a part: about the text that the collector puts into one.
PART_ROWS = 1_000
#: Texts of some 250 tokens that an answer is put together from.
REASONING_TEXTS, CONTENT_TEXTS = (4, 24), (1, 5)
RUN_FILE = """
[run]
name = "benchmark"
model = "moonshotai/kimi-k2.5"
target = "{target}"
[[datasets]]
name = "B1"
path = "prompts.jsonl"
"""
TEMPLATE = (
    "{% for m in messages %}<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>"
    "{% endfor %}<|im_assistant|>assistant<|im_middle|><think>"
)
Row = dict[str, Any]


def measure(rows: int) -> dict[str, Any]:
    """Tokens a second of each, the median of a few times; empty where the data is absent."""
    if not KIMI.is_dir():
        return {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        run = Path(name)
        (run / "run.toml").write_text(RUN_FILE.format(target=KIMI))
        _write_parts(run, rows)
        fleet = [_fleet(run) for _ in range(REPEATS)]
        counts = [sizes(path)[1] for path in sorted(run.glob("samples/*/*.parquet"))]
        limit_s = _median(_limit(run))
        loop_s = _median(_loop(run)) / counts[0] * sum(counts)
    seconds = statistics.median(one["seconds"] for one in fleet)
    return {
        "rows": rows,
        "tokens": (count := sum(counts)),
        "seconds": seconds,
        "per_s": count / seconds,
        "peak_mb": max(one["peak_mb"] for one in fleet),
        "loop_per_s": count / loop_s,
        "limit_per_s": count / limit_s,
        "of_limit": limit_s / seconds,
        "over_loop": loop_s / seconds,
        "repeats": REPEATS,
    }


def _median(once: Callable[[], object]) -> float:
    def seconds() -> float:
        began = time.perf_counter()
        once()
        return time.perf_counter() - began

    return statistics.median(seconds() for _ in range(REPEATS))


def _fleet(run: Path) -> dict[str, float]:
    """Seconds of the command, and the most memory that all its processes had."""
    for path in run.glob("samples/*/*.parquet"):
        path.unlink()
    began, peak = time.perf_counter(), 0
    command = [sys.executable, "-m", "gpu_stage", "tokens", str(run), "-j", str(CORES), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            family = [watched, *watched.children(recursive=True)]
            peak = max(peak, sum(map(_rss, family)))
            time.sleep(0.1)
        seconds = time.perf_counter() - began
        if process.returncode:
            assert process.stderr
            raise SystemExit(process.stderr.read().decode())
    return {"seconds": seconds, "peak_mb": peak // 2**20}


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _limit(run: Path) -> Callable[[], object]:
    """The texts of all rows, encoded by threads and thrown away."""
    encoding = tiktoken.Encoding(
        "kimi", pat_str=PATTERN, mergeable_ranks=read_ranks(KIMI / TIKTOKEN_FILE), special_tokens={}
    )
    texts = [
        text
        for row in _rows(run, ("messages", "reasoning", "content"))
        for text in (json.loads(row["messages"])[0]["content"], row["reasoning"], row["content"])
    ]
    return lambda: encoding.encode_ordinary_batch(texts, num_threads=CORES)


def _loop(run: Path) -> Callable[[], object]:
    """A plain loop with transformers, the tokenizer loaded before."""
    tokenizer = _fast_tokenizer()

    def once() -> None:
        found = []
        for row in _rows(run, ("prompt_id", "messages", "response"), parts=1):
            messages, reply = json.loads(row["messages"]), json.loads(row["response"])
            message = reply["choices"][0]["message"]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False)
            answer = f"{message['reasoning']}</think>{message['content']}<|im_end|>"
            prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            ids = prompt_ids + tokenizer(answer, add_special_tokens=False)["input_ids"]
            found.append({"prompt_id": row["prompt_id"], "input_ids": ids})
        pq.write_table(pa.Table.from_pylist(found), run / "loop.parquet")

    return once


def _fast_tokenizer() -> PreTrainedTokenizerFast:
    """Kimi's vocabulary as transformers converts it."""
    converter = TikTokenConverter(vocab_file=str(KIMI / TIKTOKEN_FILE), pattern=PATTERN)
    converted = converter.converted()
    names = [AddedToken(name, normalized=False) for name in Folder(KIMI).added_tokens]
    converted.add_special_tokens(names)
    return PreTrainedTokenizerFast(tokenizer_object=converted, chat_template=TEMPLATE)


def _rows(run: Path, columns: tuple[str, ...], parts: int | None = None) -> Iterator[Row]:
    for path in sorted(run.glob("completions/*/*.parquet"))[:parts]:
        yield from pq.read_table(path, columns=list(columns), partitioning=None).to_pylist()


def _write_parts(run: Path, rows: int) -> None:
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
