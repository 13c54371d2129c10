"""Hidden states of SmolLM2: engines beside a padded transformers loop, shards beside plain files.

Sampled completions of `../shared/data/smollm2` with their prompts, as they come. Each way is a
process of its own, so that its peak memory is its own:

    loop      what one would write: batches padded to their longest sample, `output_hidden_states`
    resident  the whole target in memory, samples packed
    streamed  one decoder layer in memory at a time

and the same states to disk and back: as a shard; as the same bytes by `write` and `mmap`, with
nothing computed; as one `torch.save` file a sample.
"""

import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from benchmarks.smollm2_rows import DATA
from emulator.backends.smollm2_weights import model_folder
from gpu_stage.engines.packing import make_pack, packs
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.engines.states import Engine
from gpu_stage.engines.streamed import StreamedEngine
from gpu_stage.hidden.shard_file import HIDDEN as HIDDEN_STATES
from gpu_stage.hidden.shard_file import Shape, Writer, checksum

REPEATS = 3
#: Samples in a batch of the loop, and tokens in a pack of ours.
BATCH, PACK_TOKENS = 8, 1024
HIDDEN, STATES = 576, 4
#: Tokens of one sample of the files.
SAMPLE_TOKENS = 500
WAYS = ("resident", "streamed", "loop")


def measure(rows: int) -> dict[str, Any]:
    """Tokens a second and peak memory of each way, bytes a second of each file; the median of a
    few turns. Empty where the data is absent."""
    if not DATA.is_dir():
        return {}
    model_folder()  # made once, outside of what is measured
    turns = [[_child(way, rows) for way in WAYS] for _ in range(REPEATS)]
    ways = {
        way: {
            key: _median([turn[n][key] for turn in turns]) for key in ("tokens", "per_s", "peak_mb")
        }
        for n, way in enumerate(WAYS)
    }
    return {"rows": rows, "batch": BATCH, "ways": ways, "files": _files(rows)}


def _child(way: str, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.hidden", way, str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _samples(rows: int) -> list[list[int]]:
    table = pq.read_table(DATA / "faithful.parquet", columns=["prompt_token_ids", "token_ids"])
    return [row["prompt_token_ids"] + row["token_ids"] for row in table.to_pylist()[:rows]]


def _engine(engine: Engine) -> Callable[[list[list[int]]], None]:
    def run(samples: list[list[int]]) -> None:
        for _ in engine.states([make_pack(group) for group in packs(samples, PACK_TOKENS)]):
            pass

    return run


def _loop(folder: Path) -> Callable[[list[list[int]]], None]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def run(samples: list[list[int]]) -> None:
        for start in range(0, len(samples), BATCH):
            some = samples[start : start + BATCH]
            longest = max(map(len, some))
            ids = torch.tensor([one + [0] * (longest - len(one)) for one in some])
            mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in some])
            model.model(ids, attention_mask=mask, output_hidden_states=True, use_cache=False)

    found: Callable[[list[list[int]]], None] = run
    return found


def _way(name: str) -> Callable[[list[list[int]]], None]:
    folder = model_folder()
    if name == "loop":
        return _loop(folder)
    return _engine(ResidentEngine(folder) if name == "resident" else StreamedEngine(folder))


@dataclass(frozen=True)
class _File:
    """One way to keep states on the disk."""

    write: Callable[[Path, torch.Tensor], None]
    read: Callable[[Path], None]


def _files(rows: int) -> dict[str, dict[str, float]]:
    """Bytes a second, written durably and read back, page cache warm."""
    tokens = rows * SAMPLE_TOKENS
    states = torch.randn(tokens, STATES, HIDDEN).to(torch.bfloat16)
    ways = {
        "shard": _File(_write_shard, _read_shard),
        "shard, checked": _File(_write_shard, lambda path: _drop(checksum(path))),
        "plain": _File(_write_plain, _touch),
        "torch.save": _File(_write_saved, _read_saved),
    }
    found: dict[str, dict[str, float]] = {}
    for name, way in ways.items():
        times = []
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
                path = Path(folder) / "states"
                times.append((_timed(way.write, path, states), _timed(way.read, path)))
        write, read = (_median(list(column)) for column in zip(*times, strict=True))
        size = states.nbytes / 1e9
        found[name] = {"write_gb_s": size / write, "read_gb_s": size / read}
    return found


def _timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def _drop(_: object) -> None:
    return


def _write_shard(path: Path, states: torch.Tensor) -> None:
    shape = Shape(len(states), len(states) // SAMPLE_TOKENS, HIDDEN, "bf16")
    ids = torch.zeros(len(states), dtype=torch.int32)
    with path.open("wb") as file:
        writer = Writer(file, shape)
        for part in states.split(8192):
            writer.add(part)
        writer.finish(ids, ids > 0, torch.arange(shape.samples + 1))
        file.flush()
        os.fsync(file.fileno())


def _read_shard(path: Path) -> None:
    """As `Shard` reads: mapped by safetensors, a sample at a time."""
    with safe_open(path, "pt") as file:
        states = file.get_slice(HIDDEN_STATES)
        for start in range(0, states.get_shape()[0], SAMPLE_TOKENS):
            states[start : start + SAMPLE_TOKENS].clone()


def _write_plain(path: Path, states: torch.Tensor) -> None:
    content = memoryview(states.view(torch.uint8).numpy()).cast("B")
    block = 8192 * STATES * HIDDEN * 2
    with path.open("wb") as file:
        for start in range(0, len(content), block):
            file.write(content[start : start + block])
        file.flush()
        os.fsync(file.fileno())


def _touch(path: Path) -> None:
    """Map the file and read all of it, as much at a time as a sample has."""
    size = SAMPLE_TOKENS * STATES * HIDDEN * 2
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        for part in torch.frombuffer(mapped, dtype=torch.uint8).split(size):
            part.clone()


def _write_saved(path: Path, states: torch.Tensor) -> None:
    path.mkdir()
    for number, part in enumerate(states.split(SAMPLE_TOKENS)):
        with (path / f"{number}.pt").open("wb") as file:
            torch.save({"hidden_states": part.clone()}, file)
            file.flush()
            os.fsync(file.fileno())


def _read_saved(path: Path) -> None:
    for file in path.iterdir():
        torch.load(file)


if __name__ == "__main__":
    chosen = _samples(int(sys.argv[2]))
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = _way(sys.argv[1])
    run(chosen[:1])  # what happens once
    began, count = time.perf_counter(), sum(map(len, chosen))
    run(chosen)
    seconds = time.perf_counter() - began
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024
    print(json.dumps({"tokens": count, "per_s": count / seconds, "peak_mb": peak}))
