"""How fast the collector moves completions of 4 KB from Redis to Parquet.

Both sides get the same stream, from a Valkey started here, on one core each. The collector is
the real process, stopped by SIGTERM when its stream is full, so that it drains and ends. The
baseline is the loop that one would write first: read 500 entries, decode, append one JSON line
per row, fsync, trim. It keeps no order of durability, no duplicates out, no columns.
Times include the start of the interpreter on both sides. Compare the ratio, not the seconds.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from fleet import broker
from fleet.keys import Keys
from fleet.records import Event
from fleet.schemas import COMPLETIONS
from workers.rows import read_entry

RUN = "bench"
DATASETS = [f"B{number}" for number in range(1, 9)]
RESPONSE_BYTES = 4096
WORDS = Path(__file__).read_text(encoding="utf-8").split()


def fill(client: Any, completions: int) -> None:
    """Completions of 4 KB, compressed as a worker does it, on the stream."""
    rng = random.Random(7)
    pipe = client.pipeline(transaction=False)
    for number in range(completions):
        event = Event(
            kind="completion",
            prompt_id=f"{rng.getrandbits(128):032x}",
            dataset=DATASETS[number % len(DATASETS)],
            messages=[{"role": "user", "content": " ".join(rng.choices(WORDS, k=60))}],
            attempts=1,
            latency_s=rng.random() * 30,
            requested_at=1.7e9 + number,
            completed_at=1.7e9 + number + 20,
            worker=f"worker-{number % 40}",
        )
        body = zlib.compress(response(rng, number), 1)
        pipe.xadd(Keys(RUN).completions, {"m": msgspec.json.encode(event), "r": body})
        if number % 500 == 499:
            pipe.execute()
    pipe.execute()


def response(rng: random.Random, number: int) -> bytes:
    text = " ".join(rng.choices(WORDS, k=1200))
    message = {"role": "assistant", "content": text[:2000], "reasoning": text[2000:3500]}
    choice = {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop"}
    reply = {
        "id": f"gen-{number}",
        "model": "moonshotai/kimi-k2.5-0127",
        "provider": "Chutes",
        "choices": [choice | {"message": message}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 800, "cost": 0.0016},
    }
    body = json.dumps(reply)
    return ("\n         \n" * 3 + body + " " * (RESPONSE_BYTES - len(body))).encode()


def json_lines(url: str, path: Path) -> int:
    """The baseline; returns the rows written."""
    client: Any = broker.connect(url)
    stream, rows = Keys(RUN).completions, 0
    names = COMPLETIONS.names
    with path.open("ab") as file:
        while entries := client.xrange(stream, count=500):
            for _, fields in entries:
                row = dict(zip(names, read_entry(fields).values, strict=True))
                file.write(json.dumps(row).encode() + b"\n")
                rows += 1
            file.flush()
            os.fsync(file.fileno())
            client.xtrim(stream, minid=after(entries[-1][0]), approximate=False)
    return rows


def after(entry_id: bytes) -> str:
    milliseconds, sequence = entry_id.decode().split("-")
    return f"{milliseconds}-{int(sequence) + 1}"


def run_collector(url: str, directory: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds, peak memory in MB of a collector that drains the stream."""
    command = [sys.executable, "-m", "workers.collector", RUN, "--directory", str(directory)]
    # Stopped as soon as it has begun: SIGTERM means "collect what is there, then end".
    environment = os.environ | {"REDIS_URL": url, "EAGLE_FLEET_LOG_LEVEL": "warning"}
    client, stream = broker.connect(url), Keys(RUN).completions
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment) as process:
        while client.xlen(stream) and not (directory / ".collector.lock").exists():
            time.sleep(0.005)
        process.terminate()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or client.xlen(stream):
        raise SystemExit(f"the collector left entries behind or failed ({process.returncode})")
    seconds = time.perf_counter() - began
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def measure(completions: int) -> dict[str, float]:
    """Rates of both, and what the collector used and wrote."""
    with tempfile.TemporaryDirectory() as folder, broker.embedded(Path(folder)) as url:
        fill(broker.connect(url), completions)
        seconds, cpu_s, peak_mb = run_collector(url, Path(folder))
        files = list(Path(folder).glob("completions/dataset=*/*.parquet"))
        parquet_bytes = sum(file.stat().st_size for file in files)
        fill(broker.connect(url), completions)
        lines = Path(folder, "completions.jsonl")
        began = time.perf_counter()
        assert json_lines(url, lines) == completions
        baseline_s = time.perf_counter() - began
        return {
            "completions": completions,
            "per_s": completions / seconds,
            "cpu_us": 1e6 * cpu_s / completions,
            "peak_mb": peak_mb,
            "parquet_mb": parquet_bytes / 1e6,
            "lines_per_s": completions / baseline_s,
            "lines_mb": lines.stat().st_size / 1e6,
            "ratio": baseline_s / seconds,
        }
