"""What `gpu-stage extract` was asked for, kept in the folder of its shards.

In: options of a command. Out: `extract.json`, from which a worker on another machine knows what to
do. Invariant: all shards of one folder are of one target, layers, storage and cut; other
wishes are refused.
"""

from pathlib import Path
from typing import Literal

import msgspec

from fleet.errors import ConfigError
from gpu_stage.files import sync
from gpu_stage.hidden.index import Layers, Storage, Target

NAME = "extract.json"
EngineName = Literal["resident", "streamed", "vllm"]


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is extracted, and how."""

    #: Run's directory or set's folder, and the target's folder: absolute paths, the same on every
    #: machine that works on it.
    source: str
    target_folder: str
    target: Target
    layers: Layers
    hidden_size: int
    storage: Storage
    #: Most bytes of a shard; one sample alone may exceed it.
    shard_bytes: int
    engine: EngineName
    #: Tokens that go through the target at once.
    pack_tokens: int
    #: `cpu`, `cuda`, or a vLLM server's URL.
    device: str
    #: Most bytes of the folder; 0: off.
    spool_bytes: int = 0

    #: What may change from one call to the next without making shards of another kind.
    FREE = ("engine", "pack_tokens", "device", "spool_bytes", "source", "target_folder")


def keep(folder: Path, order: Order) -> None:
    """Write the order down, or take the place of one for the same shards.

    Raises:
        ConfigError: the folder holds shards of another order.
    """
    path = folder / NAME
    if path.exists():
        there = read(folder)
        for field in order.__struct_fields__:
            ours, theirs = getattr(order, field), getattr(there, field)
            if field not in Order.FREE and ours != theirs:
                raise ConfigError(
                    f"{folder}: holds shards with {field} {_text(theirs)}, and {_text(ours)} was "
                    "asked for; name another folder with --out, or delete this one"
                )
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{NAME}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(order), indent=1) + b"\n")
    sync(temporary)
    temporary.replace(path)
    sync(folder)


def read(folder: Path) -> Order:
    """
    Raises:
        ConfigError: there is no order, or it is not one.
    """
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Order)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: no {NAME} there; is it the folder of a run's or set's hidden states?"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not what `gpu-stage extract` writes: {error}") from error


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
