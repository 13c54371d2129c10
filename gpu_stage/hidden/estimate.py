"""What an extraction will take, before anything runs: bytes, memory, and hours by measured speeds.

In: a piece of work. Out: a `Plan`. The speeds are measured on this machine, with the target's own
weights: how fast they are read and states are written, and how fast one decoder layer computes.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_stage.engines.checkpoint import Checkpoint, weight_files
from gpu_stage.engines.layers import Layers
from gpu_stage.engines.packing import make_pack
from gpu_stage.engines.streamed import StreamedEngine
from gpu_stage.hidden.cut import Work

MEASURED_BYTES = 1 << 30
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Speeds:
    """Measured on this machine."""

    read_bytes_s: float
    write_bytes_s: float
    #: Of one decoder layer, the slowest kind that the target has.
    layer_tokens_s: float


@dataclass(frozen=True)
class Plan:
    """What an extraction takes. Hours are of one process."""

    shards: int
    tokens: int
    #: Of all shards, and what is free where they go.
    write_bytes: int
    free_bytes: int
    #: Of the target's weights, and in all: `streamed` reads them once a shard.
    weight_bytes: int
    read_bytes: int
    #: Beside the target: the states of a chunk; and of weights at once.
    state_bytes: int
    resident_bytes: int
    compute_s: float
    read_s: float
    write_s: float

    @property
    def seconds(self) -> float:
        """Weights are read while the layer before computes; shards are written behind it."""
        return max(self.compute_s, self.read_s) + self.write_s


def make_plan(work: Work, speeds: Speeds) -> Plan:
    """The plan of what is not there yet."""
    order, pieces = work.order, [piece for piece in work.pieces if not work.made(piece)]
    tokens = sum(piece.tokens for piece in pieces)
    largest = max((piece.tokens for piece in pieces), default=0)
    streamed = order.engine == "streamed"
    with Checkpoint(Path(order.target_folder)) as checkpoint:
        layers = [checkpoint.bytes_below(f"layers.{n}.") for n in range(order.layers.last)]
        whole = checkpoint.bytes_below("")
    read = whole * (len(pieces) if streamed else 1)
    write = sum(piece.shape(order).bytes for piece in pieces)
    chunk = largest if streamed else min(largest, order.pack_tokens)
    return Plan(
        shards=len(pieces),
        tokens=tokens,
        write_bytes=write,
        free_bytes=shutil.disk_usage(_existing(work.folder)).free,
        weight_bytes=whole,
        read_bytes=read,
        state_bytes=chunk * 4 * order.hidden_size * 2,
        resident_bytes=2 * max(layers) if streamed else whole,
        compute_s=tokens * order.layers.last / speeds.layer_tokens_s,
        read_s=read / speeds.read_bytes_s,
        write_s=write / speeds.write_bytes_s,
    )


def measure(work: Work) -> Speeds:
    """Read some of the weights, write some states, send a pack through a layer."""
    folder = Path(work.order.target_folder)
    return Speeds(_read_speed(folder), _write_speed(work.folder), _layer_speed(work, folder))


def _read_speed(folder: Path) -> float:
    """Bytes a second from the disk: the page cache is asked to let go of them before."""
    path = max((folder / name for name in weight_files(folder)), key=lambda one: one.stat().st_size)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, done = time.perf_counter(), 0
        while done < MEASURED_BYTES and (block := file.read(BLOCK_BYTES)):
            done += len(block)
    return done / (time.perf_counter() - began)


def _write_speed(folder: Path) -> float:
    block = os.urandom(BLOCK_BYTES)
    with tempfile.NamedTemporaryFile(dir=_existing(folder), buffering=0) as file:
        began = time.perf_counter()
        for _ in range(MEASURED_BYTES // BLOCK_BYTES // 4):
            file.write(block)
        os.fsync(file.fileno())
        return MEASURED_BYTES / 4 / (time.perf_counter() - began)


def _layer_speed(work: Work, folder: Path) -> float:
    order = work.order
    last = order.layers.last - 1
    engine = StreamedEngine(
        folder, layers=Layers(order.layers.aux, order.layers.last), device=order.device
    )
    pack = make_pack([list(range(min(order.pack_tokens, engine.vocabulary)))])
    return float(len(pack.ids) / engine.layer_seconds(last, pack))


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return folder if folder.exists() else _existing(folder.parent)
