"""The index of a shard: what is in it, what it was made of, and how to tell that it is whole."""

from pathlib import Path
from typing import Literal

import msgspec

from fleet.errors import InputError

FORMAT = "eagle-fleet hidden states"
VERSION = 1

Storage = Literal["bf16", "fp8"]


class Layers(msgspec.Struct, frozen=True):
    """Which states: indices i of h[i], the residual stream behind i decoder layers."""

    aux: tuple[int, int, int]
    last: int


class Target(msgspec.Struct, frozen=True):
    """Whose states."""

    #: The folder's own name, for people.
    name: str
    #: `engines.checkpoint.fingerprint`.
    fingerprint: str


class Source(msgspec.Struct, frozen=True):
    """Which samples: rows of one part file."""

    #: Path under the run's `samples/`, or under the set.
    part: str
    #: SHA-256 of the part file.
    sha256: str
    #: First row, and the one behind the last. Rejected rows among them are left out.
    rows: tuple[int, int]


class Contract(msgspec.Struct, frozen=True):
    """What decides every byte of a shard but for rounding: an engine that computes the same in
    another order may differ in the last bit."""

    target: Target
    layers: Layers
    storage: Storage
    source: Source


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One sample: its prompt and dataset, and its tokens in the shard's order."""

    prompt_id: str
    dataset: str
    tokens: int
    loss_tokens: int


class Index(msgspec.Struct, frozen=True):
    """Beside `<name>.safetensors`, as `<name>.json`."""

    contract: Contract
    engine: str
    hidden_size: int
    tokens: int
    loss_tokens: int
    samples: list[Sample]
    #: Of the shard's file.
    bytes: int
    xxh3_128: str
    #: Of fp8, relative, for low, middle, high and last; None: stored as computed.
    float8_error: list[float] | None
    #: What wrote it.
    writer: str
    format: str = FORMAT
    version: int = VERSION


def index_of(shard: Path) -> Path:
    """The index's path, by the shard's."""
    return shard.with_suffix(".json")


def read_index(path: Path) -> Index:
    """
    Args:
        path: of the index.

    Raises:
        InputError: there is none, or it is not one, or of a version that is not known.
    """
    try:
        index = msgspec.json.decode(path.read_bytes(), type=Index)
    except FileNotFoundError:
        raise InputError(
            f"{path.with_suffix('.safetensors')}: has no index beside it ({path.name}), so it was "
            "not finished; run `gpu-stage extract` again"
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: not the index of a shard of hidden states: {error}") from error
    if (index.format, index.version) != (FORMAT, VERSION):
        raise InputError(
            f"{path}: is {index.format!r} version {index.version}; this version of eagle-fleet "
            f"reads {FORMAT!r} version {VERSION}"
        )
    return index
