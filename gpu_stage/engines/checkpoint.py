"""Weights of a model folder by name, memory-mapped: nothing is read before it is asked for.

In: a folder of safetensors files, with or without an index. Out: tensors by their names in the
text model (`layers.3.mlp.gate.weight`), whatever stands before them in the file
(`model.`, `language_model.model.`). It knows nothing of what the tensors mean.
"""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fleet.errors import ConfigError

#: Every text model that is read has this; what stands before it is the prefix.
MARKER = "layers.0.input_layernorm.weight"
HEAD = "lm_head.weight"
#: Bytes of each file that go into the fingerprint, and in how many places.
GLANCE_BYTES, GLANCES = 4096, 64


class Checkpoint:
    """The weights of a target. Close it, or use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: the folder has no safetensors, one is damaged or missing, or they hold no
                decoder layers.
        """
        self.folder = folder
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        self._where = _names(folder, self._file)
        prefixes = {name.removesuffix(MARKER) for name in self._where if name.endswith(MARKER)}
        if len(prefixes) != 1:
            raise ConfigError(
                f"{folder}: {len(prefixes)} tensors are called *{MARKER}, one is needed: it is not "
                "a decoder that is read here"
            )
        self._prefix = prefixes.pop()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Unmap the files: what was read of them no longer counts as this process's memory.
        Tensors that were got stay readable until they are dropped; asking anew maps anew."""
        self._open.close()
        self._files.clear()

    def names(self, below: str) -> list[str]:
        """Names of tensors below a module of the text model (`layers.3.`), without it."""
        start = self._prefix + below
        return [name.removeprefix(start) for name in self._where if name.startswith(start)]

    def has(self, name: str) -> bool:
        return self._prefix + name in self._where

    def get(self, name: str) -> torch.Tensor:
        """A tensor of the text model, on the CPU: its pages are read when it is used."""
        return self._get(self._prefix + name)

    @property
    def tied(self) -> bool:
        """Whether the output embedding is the input embedding."""
        return self._head_name() is None

    def head(self) -> torch.Tensor:
        """The output embedding, [V, H]."""
        name = self._head_name()
        return self._get(name) if name else self.get("embed_tokens.weight")

    def _head_name(self) -> str | None:
        before = self._prefix.removesuffix("model.")
        return next((name for name in (before + HEAD, HEAD) if name in self._where), None)

    def bytes_below(self, below: str) -> int:
        """Bytes of the tensors below a module, as they lie on the disk."""
        return sum(self._size(self._prefix + below + name) for name in self.names(below))

    def _size(self, name: str) -> int:
        piece = self._file(self._where[name]).get_slice(name)
        count = 1
        for length in piece.get_shape():
            count *= length
        return count * ITEM_BYTES[piece.get_dtype()]

    def _get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file(self._where[name]).get_tensor(name)
        return tensor

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            try:
                opened = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path}: cannot be read ({error}); download it again") from error
            self._files[name] = self._open.enter_context(opened)
        return self._files[name]


#: Bytes of one value, by safetensors' names of types.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "F64": 8,
}


def weight_files(folder: Path) -> list[str]:
    """Names of the files that hold the weights, in order.

    Raises:
        ConfigError: there is none.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted(set(_weight_map(index).values()))
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    raise ConfigError(
        f"{folder}: no model.safetensors and no model.safetensors.index.json there; name the "
        "folder of the target's weights"
    )


def fingerprint(folder: Path) -> str:
    """Tells one target's weights from another's, without reading hundreds of gigabytes.

    A SHA-256 of config.json and, of each weight file, of its name, size, header and a glance at 64
    places: other weights, or a file that was cut short, give another.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for name in weight_files(folder):
        try:
            size = (folder / name).stat().st_size
            with (folder / name).open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
                digest.update(f"{name} {size} {header}".encode() + file.read(min(header, size)))
                for place in range(GLANCES):
                    file.seek(size * place // GLANCES, os.SEEK_SET)
                    digest.update(file.read(GLANCE_BYTES))
        except OSError as error:
            raise ConfigError(f"{folder / name}: cannot be read: {error}") from error
    return digest.hexdigest()


def _names(folder: Path, file: Any) -> dict[str, str]:
    """Which file holds a tensor."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _weight_map(index)
    return {key: name for name in weight_files(folder) for key in file(name).keys()}  # noqa: SIM118


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index}: not an index of weights ({error!r})") from error
    return found
