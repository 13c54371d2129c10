"""How long a large run takes to start again: seconds from the command to its first new request.

A run with 1,000,000 prompts, 990,000 of them done, is made as its processes would have left
it: prompts frozen, the ledger on disk. Then `producer run` starts: it reads the frozen prompts,
Valkey loads its append-only file, workers start, the feeder finds what is left. Once with the
place it had reached, and once with that place lost, so that every prompt is looked up. The
completions of the 990,000 are not on disk here: no request waits for the collector.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import workload
from benchmarks.measure import end
from emulator.launch import Running
from fleet import broker, run_config
from fleet.keys import Keys
from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from producer.freeze import FreezeSummary
from producer.frozen import Prompt, Writer
from producer.identity import identity
from producer.sources import resolve

IN_FLIGHT = 256
DATASET = "B1"
CHUNK = 5_000
#: Of one answer: tokens and nano-USD.
TOKENS, SPENT = 300, 600_000
POLL_S = 0.02


@dataclass(frozen=True)
class Resume:
    """One start."""

    #: Rows that the ledger says were fed.
    cursor: int
    #: 0: none came within the limit.
    first_request_s: float
    limit_s: float


def measure(prompts: int, done: int, limit_s: float) -> dict[str, Any]:
    """Both starts, and what Valkey holds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config = _freeze(folder, prompts)
        with broker.embedded(config.directory) as url:
            client = broker.connect(url)
            _mark_done(client, config, done)
            valkey_bytes = int(client.info("memory")["used_memory"])
        starts = [_start(config, done, limit_s), _start_without_cursor(config, limit_s)]
    return {
        "prompts": prompts,
        "done": done,
        "valkey_mb": valkey_bytes / 1e6,
        "starts": [asdict(start) for start in starts],
    }


def _prompt_ids(count: int) -> list[str]:
    rng = random.Random(11)
    return [f"{rng.getrandbits(128):032x}" for _ in range(count)]


def _freeze(folder: Path, prompts: int) -> RunConfig:
    """The frozen file, as `producer.freeze` would have written it from a file of that size."""
    source = folder / "prompts.jsonl"
    workload.write_prompts(source, 100)
    config = run_config.load(workload.write_run(folder, IN_FLIGHT))
    dataset = config.datasets[0]
    made_from = identity(
        dataset, resolve(dataset.patterns(), folder), workload.MODEL, config.sampling
    )
    texts = [json.dumps(m, separators=(",", ":")) for m in workload.messages(1000)]
    path = config.directory / "prompts" / f"{DATASET}.parquet"
    path.parent.mkdir(parents=True)
    with Writer(path) as writer:
        for row, prompt_id in enumerate(_prompt_ids(prompts)):
            text = texts[row % len(texts)].replace('"content":"', f'"content":"{row} ')
            writer.write([Prompt(prompt_id, text, None, None, 0, str(source), row + 1)])
        summary = FreezeSummary(DATASET, prompts, prompts, prompts, 0, 0, {})
        writer.finish(msgspec.to_builtins({"identity": made_from, "summary": summary}))
    return config


def _mark_done(client: Any, config: RunConfig, done: int) -> None:
    """What `done` commits leave on the ledger."""
    keys = Keys(config.run.name)
    ids = _prompt_ids(done)
    with client.pipeline(transaction=False) as pipe:
        for start in range(0, done, CHUNK):
            fences = {ids[n]: n + 1 for n in range(start, min(start + CHUNK, done))}
            pipe.hset(keys.done, mapping=fences)
            pipe.execute()
        pipe.hset(keys.run, mapping={"fence": done, "spent": done * SPENT})
        counts = {"done": done, "n": done, "cursor": done, "prompt_tokens": 90 * done}
        counts |= {"tokens": TOKENS * done, "squares": TOKENS**2 * done, "spent": SPENT * done}
        pipe.hset(keys.datasets, mapping={f"{DATASET}|{k}": v for k, v in counts.items()})
        pipe.execute()


def _start_without_cursor(config: RunConfig, limit_s: float) -> Resume:
    with broker.embedded(config.directory) as url:
        ledger = Ledger(broker.connect(url), config.run.name)
        ledger.client.hset(ledger.keys.datasets, f"{DATASET}|cursor", 0)
        # What the first start left under way would be sent again before anything is looked up.
        ledger.client.delete(
            ledger.keys.prompts, ledger.keys.queued, ledger.keys.waiting, ledger.keys.claims
        )
        ledger.client.hset(ledger.keys.run, mapping={"in_flight": 0, "reserved": 0})
        ledger.client.hset(ledger.keys.datasets, f"{DATASET}|in_flight", 0)
        ledger.client.delete(ledger.keys.claim, ledger.keys.workers, ledger.keys.endpoints)
    return _start(config, 0, limit_s)


def _start(config: RunConfig, cursor: int, limit_s: float) -> Resume:
    """`producer run` until its first request; then it is killed."""
    with workload.service() as host:
        environment = {"OPENROUTER_API_KEY": workload.API_KEY, "OPENROUTER_BASE_URL": host.url}
        log = config.directory / "producer.log"
        with log.open("ab") as output:
            began = time.time()
            process = subprocess.Popen(
                [sys.executable, "-m", "producer", "run", str(config.path), "--yes"],
                env=os.environ | environment | {"REDIS_URL": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            seconds = _first_request_s(process, host, began, limit_s)
        finally:
            end(process, patience_s=0)
            _wait_for_valkey(config)
    return Resume(cursor, seconds, limit_s)


def _first_request_s(
    process: "subprocess.Popen[bytes]", host: Running, began: float, limit_s: float
) -> float:
    while time.time() - began < limit_s:
        if host.books()["requests"]:
            return time.time() - began
        if process.poll() is not None:
            raise SystemExit(f"`producer run` ended with status {process.returncode}")
        time.sleep(POLL_S)
    return 0.0


def _wait_for_valkey(config: RunConfig) -> None:
    """The next start must not join the server that is ending."""
    client = broker.connect(f"unix://{broker.socket_path(config.directory)}")
    while True:
        try:
            client.ping()
        except Exception:  # gone: whatever the reason
            return
        time.sleep(POLL_S)
