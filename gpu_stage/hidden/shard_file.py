"""A shard of hidden states written in one pass, and read by memory map.

In: states of packs in order. Out: a safetensors file whose large tensor lies first, so that it is
written as it is made; its length is known beforehand. Reading checks the size against the index,
and the content when asked.

    T   tokens    S   states of a token: three aux, low to high, then last    H   hidden size
    N   samples
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from fleet.errors import InputError
from gpu_stage.engines.activations import STATES
from gpu_stage.hidden import float8
from gpu_stage.hidden.index import FORMAT, VERSION, Index, Storage, index_of, read_index

#: Tensors of a shard.
HIDDEN, SCALE, IDS, MASK, BOUNDS = (
    "hidden_states",
    "hidden_states_scale",
    "input_ids",
    "loss_mask",
    "cu_seqlens",
)
DTYPES = {
    torch.bfloat16: "BF16",
    float8.DTYPE: "F8_E4M3",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Shape:
    """What fixes a shard's size."""

    tokens: int
    samples: int
    hidden_size: int
    storage: Storage

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.hidden_size, self.storage)

    def tensors(self) -> dict[str, tuple[torch.dtype, list[int]]]:
        """In the order of the file."""
        t, h = self.tokens, self.hidden_size
        packed = self.storage == "fp8"
        return {
            HIDDEN: (float8.DTYPE if packed else torch.bfloat16, [t, STATES, h]),
            **({SCALE: (torch.float32, [t, STATES])} if packed else {}),
            IDS: (torch.int32, [t]),
            BOUNDS: (torch.int32, [self.samples + 1]),
            MASK: (torch.bool, [t]),
        }

    def header(self) -> bytes:
        """The first bytes of the file, padded so that tensors begin at a multiple of 64."""
        place, entries = 0, dict[str, Any]()
        entries["__metadata__"] = {"format": FORMAT, "version": str(VERSION)}
        for name, (dtype, shape) in self.tensors().items():
            end = place + torch.Size(shape).numel() * dtype.itemsize
            entries[name] = {
                "dtype": DTYPES[dtype],
                "shape": shape,
                "data_offsets": [place, end],
            }
            place = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 64)
        return len(text).to_bytes(8, "little") + text

    @cached_property
    def bytes(self) -> int:
        sizes = (torch.Size(s).numel() * dtype.itemsize for dtype, s in self.tensors().values())
        return len(self.header()) + int(sum(sizes))


def token_bytes(hidden_size: int, storage: Storage) -> int:
    """Bytes that one token takes: its states, their scales, its id and its mask."""
    value, scales = (1, 4 * STATES) if storage == "fp8" else (2, 0)
    return STATES * hidden_size * value + scales + 4 + 1


class Writer:
    """Writes one shard; `finish` when all states were given."""

    def __init__(self, file: BinaryIO, shape: Shape) -> None:
        self._file, self._shape = file, shape
        self._digest = xxhash.xxh3_128()
        self._scales: list[torch.Tensor] = []
        self._error = float8.Error()
        self._written = 0
        self._put(shape.header())

    def add(self, states: torch.Tensor) -> None:
        """The states of the next tokens, [t, S, H]."""
        if self._shape.storage == "fp8":
            values, scale = float8.to_float8(states)
            self._error.add(states, values, scale)
            self._scales.append(scale)
        else:
            values = states.to(torch.bfloat16)
        self._written += len(states)
        self._put_tensor(values)

    def finish(
        self, ids: torch.Tensor, mask: torch.Tensor, bounds: torch.Tensor
    ) -> tuple[str, list[float] | None]:
        """Write the rest; the checksum, and the error of fp8."""
        if self._written != self._shape.tokens:
            raise ValueError(f"{self._written} tokens were given, not {self._shape.tokens}")
        if self._scales:
            self._put_tensor(torch.cat(self._scales))
        for tensor in (ids.to(torch.int32), bounds.to(torch.int32), mask.to(torch.bool)):
            self._put_tensor(tensor)
        return self._digest.hexdigest(), self._error.relative() if self._scales else None

    def _put_tensor(self, tensor: torch.Tensor) -> None:
        self._put(memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B"))

    def _put(self, content: bytes | memoryview) -> None:
        self._digest.update(content)
        self._file.write(content)


class Shard:
    """A shard that is there, memory-mapped."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            InputError: it has no index, is cut short, or is not what the index says.
        """
        self.path = path
        self.index: Index = read_index(index_of(path))
        shape = Shape(
            self.index.tokens,
            len(self.index.samples),
            self.index.hidden_size,
            self.index.contract.storage,
        )
        size = _size(path)
        if size != self.index.bytes or size != shape.bytes:
            raise InputError(
                f"{path}: has {size:,} bytes, its index says {self.index.bytes:,}: it was cut "
                "short or is not the shard that its index is of; delete both and extract again"
            )
        try:
            file: Any = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise InputError(
                f"{path}: not safetensors ({error}); delete it and extract again"
            ) from error
        if (file.metadata() or {}).get("format") != FORMAT or set(file.keys()) != set(
            shape.tensors()
        ):
            raise InputError(f"{path}: safetensors, but not {FORMAT}; move it elsewhere")
        self._file = file

    def check(self) -> None:
        """Hold the content against its checksum, which reads all of it.

        Raises:
            InputError: it has changed since it was written.
        """
        if checksum(self.path) != self.index.xxh3_128:
            raise InputError(
                f"{self.path}: its content is not what was written (xxh3 differs); delete it with "
                f"{index_of(self.path).name} and extract again"
            )

    @property
    def input_ids(self) -> torch.Tensor:  # [T] int32
        return self._get(IDS)

    @property
    def loss_mask(self) -> torch.Tensor:  # [T] bool
        """Whether the target wrote the token."""
        return self._get(MASK)

    @property
    def bounds(self) -> torch.Tensor:  # [N + 1] int32
        """0, where the second sample begins, …, T."""
        return self._get(BOUNDS)

    def hidden_states(self, start: int = 0, end: int | None = None) -> torch.Tensor:
        """bf16 [end - start, S, H] of tokens; only their pages are read."""
        values: torch.Tensor = self._file.get_slice(HIDDEN)[
            start : self.index.tokens if end is None else end
        ]
        if self.index.contract.storage == "bf16":
            return values
        return float8.from_float8(values, self._get(SCALE)[start:end])

    def _get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor


def checksum(path: Path) -> str:
    """xxh3 of a file, 128 bits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise InputError(
            f"{path}: is gone, its index is there: training has consumed it, or somebody deleted "
            "it; delete the index too and extract again"
        ) from None


def mask_of(spans: Sequence[tuple[int, int]], length: int) -> torch.Tensor:
    """The loss mask of one sample, bool [length], of half-open ranges."""
    mask = torch.zeros(length, dtype=torch.bool)
    for start, end in spans:
        mask[start:end] = True
    return mask
