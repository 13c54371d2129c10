"""The target that hidden states are of: its folder looked at, and its engine made."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fleet.errors import ConfigError
from gpu_stage.engines import layers as engine_layers
from gpu_stage.engines.checkpoint import fingerprint
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.engines.states import Engine
from gpu_stage.engines.streamed import StreamedEngine
from gpu_stage.engines.vllm import VllmEngine
from gpu_stage.hidden.index import Layers, Target
from gpu_stage.hidden.order import EngineName, Order


def look_at(folder: Path) -> Target:
    """
    Raises:
        ConfigError: no weights are there, or they cannot be read.
    """
    return Target(folder.resolve().name, fingerprint(folder))


def text_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a target's language model.

    Raises:
        ConfigError: there is none.
    """
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: not there; name the folder of the target's weights") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    return config.get("text_config") or config


def layers_of(folder: Path, aux: tuple[int, ...] | None) -> Layers:
    """Which states to take.

    Args:
        aux: indices i of h[i]; None: those that vLLM and SGLang read when a draft names none.

    Raises:
        ConfigError: the target has no such layers.
    """
    count = int(text_config(folder)["num_hidden_layers"])
    try:
        if aux is None:
            chosen = engine_layers.default_layers(count)
        elif len(aux) == 3:
            chosen = engine_layers.Layers((aux[0], aux[1], aux[2]), count)
        else:
            raise ValueError(f"aux layers {aux}: three of them are needed")
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}; name others with --layers") from error
    return Layers(chosen.aux, chosen.last)


def engine_for(order: Order) -> Engine:
    """The engine that an order asks for; a process loads its target once.

    Raises:
        ConfigError: the folder holds another target than the order's, or cannot be loaded.
    """
    folder = Path(order.target_folder)
    if fingerprint(folder) != order.target.fingerprint:
        raise ConfigError(
            f"{folder}: holds other weights than this folder of hidden states was begun with; "
            "give every machine the same target"
        )
    return _engine(folder, order.target.fingerprint, order.layers, order.engine, order.device)


@lru_cache(maxsize=1)
def _engine(folder: Path, weights: str, layers: Layers, engine: EngineName, device: str) -> Engine:
    """`weights` is there for the cache: a folder whose files change is loaded again."""
    return load_engine(folder, engine_layers.Layers(layers.aux, layers.last), engine, device)


def load_engine(folder: Path, layers: engine_layers.Layers, engine: str, device: str) -> Engine:
    """A target loaded.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, or the URL of a vLLM server.

    Raises:
        ConfigError: the folder cannot be loaded, or no server answers.
    """
    if engine == "streamed":
        return StreamedEngine(folder, layers=layers, device=device)
    if engine == "vllm":
        return VllmEngine(folder, device, layers)
    return ResidentEngine(folder, layers=layers, device_map=_device_map(device))


def _device_map(device: str) -> str | None:
    """All of this process's GPUs, or the one that is named."""
    return {"cpu": None, "cuda": "auto"}.get(device, device)


def pick_device(wanted: str) -> str:
    """What `auto` is on this machine."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
