"""Completions to token ids: `gpu-stage tokens` beside a Hugging Face loop and bare tiktoken.

Part files as the collector writes them, with answers as long as Kimi's, made of the texts in
`../shared/data`; Kimi's tokenizer. Three ways over the same rows:

    fleet     `gpu-stage tokens RUN`, from the start of the command to its end
    loop      what one would write: rows from Parquet, chat template, fast tokenizer, to Parquet;
              over the first part, since it is slow
    tiktoken  `encode_ordinary_batch` over the texts alone, in memory: the limit
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from benchmarks.measure import Watch
from benchmarks.token_rows import KIMI, write_parts
from gpu_stage.sample_file import sizes
from tokens.families.kimi import DATA as TIKTOKEN_FILE
from tokens.families.kimi import PATTERN
from tokens.folder import Folder
from tokens.tiktoken_codec import read_ranks

CORES = 2
REPEATS = 3
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
        write_parts(run, rows)
        load, encode, follow = os.getloadavg()[0], _limit(run), _loop(run)
        # In turns, so that other work on the machine disturbs all alike.
        turns = [(_fleet(run), encode(), follow()) for _ in range(REPEATS)]
        fleet, limit, loop = map(_median, zip(*turns, strict=True))
        counts = [sizes(path)[1] for path in sorted(run.glob("samples/*/*.parquet"))]
    count, loop_s = sum(counts), loop.wall_s / counts[0] * sum(counts)
    return {
        "rows": rows,
        "tokens": count,
        "seconds": fleet.wall_s,
        "peak_mb": fleet.peak_mb,
        "repeats": REPEATS,
        "load_before": round(load, 2),
        "per_s": count / fleet.wall_s,
        "loop_per_s": count / loop_s,
        "limit_per_s": count / limit.wall_s,
        "of_limit": limit.wall_s / fleet.wall_s,
        "cpu_of_limit": limit.cpu_s / fleet.cpu_s,
    }


@dataclass(frozen=True)
class Cost:
    """What one way took, once."""

    wall_s: float
    #: User and system time of all its processes and threads.
    cpu_s: float
    peak_mb: int = 0


def _median(costs: Iterable[Cost]) -> Cost:
    """The middle one by the clock."""
    return sorted(costs, key=lambda cost: cost.wall_s)[REPEATS // 2]


def _timed(work: Callable[[], object]) -> Cost:
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - began, time.process_time() - cpu)


def _fleet(run: Path) -> Cost:
    """The whole command."""
    for path in run.glob("samples/*/*.parquet"):
        path.unlink()
    began = time.perf_counter()
    command = [sys.executable, "-m", "gpu_stage", "tokens", str(run), "-j", str(CORES), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - began
    watch.stop()
    if process.returncode:
        raise SystemExit(f"gpu-stage tokens ended with status {process.returncode}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, watch.peak_bytes // 2**20)


def _limit(run: Path) -> Callable[[], Cost]:
    """The texts of all rows, encoded by threads and thrown away."""
    encoding = tiktoken.Encoding(
        "kimi", pat_str=PATTERN, mergeable_ranks=read_ranks(KIMI / TIKTOKEN_FILE), special_tokens={}
    )
    texts = [
        text
        for row in _rows(run, ("messages", "reasoning", "content"))
        for text in (json.loads(row["messages"])[0]["content"], row["reasoning"], row["content"])
    ]
    return lambda: _timed(lambda: encoding.encode_ordinary_batch(texts, num_threads=CORES))


def _loop(run: Path) -> Callable[[], Cost]:
    """A plain loop with transformers, the tokenizer loaded before."""
    tokenizer = _fast_tokenizer()

    def once() -> None:
        found = []
        for row in _rows(run, ("prompt_id", "messages", "response"), first=1):
            messages, reply = json.loads(row["messages"]), json.loads(row["response"])
            message = reply["choices"][0]["message"]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False)
            answer = f"{message['reasoning']}</think>{message['content']}<|im_end|>"
            prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            ids = prompt_ids + tokenizer(answer, add_special_tokens=False)["input_ids"]
            found.append({"prompt_id": row["prompt_id"], "input_ids": ids})
        pq.write_table(pa.Table.from_pylist(found), run / "loop.parquet")

    return lambda: _timed(once)


def _fast_tokenizer() -> PreTrainedTokenizerFast:
    """Kimi's vocabulary as transformers converts it."""
    converter = TikTokenConverter(vocab_file=str(KIMI / TIKTOKEN_FILE), pattern=PATTERN)
    converted = converter.converted()
    names = [AddedToken(name, normalized=False) for name in Folder(KIMI).added_tokens]
    converted.add_special_tokens(names)
    return PreTrainedTokenizerFast(tokenizer_object=converted, chat_template=TEMPLATE)


def _rows(run: Path, columns: tuple[str, ...], first: int | None = None) -> Iterator[Row]:
    for path in sorted(run.glob("completions/*/*.parquet"))[:first]:
        yield from pq.read_table(path, columns=list(columns), partitioning=None).to_pylist()
