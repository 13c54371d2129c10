"""Checkpoints of a training: whole or not there, and enough to go on to the same bits.

checkpoints/
  train.json             settings, target, layers, data: what a training is of
  step-00000400/         draft.safetensors, config.json, optimizer.pt, state.json
  best -> step-…         of the lowest held-out loss
  log.jsonl              one line an update, and one a validation
"""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file

from fleet.errors import ConfigError, InputError
from gpu_stage.draft.config import DraftConfig
from gpu_stage.draft.model import Draft
from gpu_stage.files import sync, whole_folder

WEIGHTS, CONFIG, OPTIMIZER, STATE = "draft.safetensors", "config.json", "optimizer.pt", "state.json"
BEST, ABOUT, LOG = "best", "train.json", "log.jsonl"


class State(msgspec.Struct, frozen=True):
    """Where a training stands."""

    update: int = 0
    epoch: int = 0
    #: Updates of the epoch that are done.
    within: int = 0
    tokens: int = 0
    best_loss: float | None = None
    #: Validations since the best.
    worse: int = 0


def save(folder: Path, draft: Draft, optimizer: torch.optim.Optimizer, state: State) -> Path:
    """A checkpoint under its name once all of it is on the disk; its folder."""
    path = folder / f"step-{state.update:08}"
    if path.exists():
        return path
    with whole_folder(path) as made:
        weights = {name: tensor.contiguous() for name, tensor in draft.state_dict().items()}
        save_file(weights, made / WEIGHTS)
        (made / CONFIG).write_text(json.dumps(draft.config.to_json(), indent=1) + "\n")
        torch.save(optimizer.state_dict(), made / OPTIMIZER)
        (made / STATE).write_bytes(msgspec.json.encode(state))
    return path


def all_checkpoints(folder: Path) -> list[Path]:
    """In order."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def name_best(folder: Path, checkpoint: Path) -> None:
    link = folder / f".{BEST}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.name)
    link.rename(folder / BEST)
    sync(folder)


def forget(folder: Path, keep: int) -> None:
    """Delete all but the newest and the best."""
    best = (folder / BEST).resolve()
    for path in all_checkpoints(folder)[:-keep]:
        if path.resolve() != best:
            shutil.rmtree(path)


def load_draft(path: Path) -> Draft:
    """A draft by its checkpoint, or by the folder of a training: its best.

    Raises:
        InputError: none is there, or it cannot be read.
    """
    folder = path / BEST if (path / BEST).exists() else path
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=DraftConfig)
        draft = Draft(config)
        draft.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, msgspec.MsgspecError, RuntimeError) as error:
        raise InputError(
            f"{path}: no draft there ({error}); name a folder of checkpoints or one of them"
        ) from error
    return draft


def resume(path: Path, draft: Draft, optimizer: torch.optim.Optimizer) -> State:
    """Take over weights and optimiser; where the training stood."""
    draft.load_state_dict(load_file(path / WEIGHTS))
    optimizer.load_state_dict(torch.load(path / OPTIMIZER, weights_only=True))
    return msgspec.json.decode((path / STATE).read_bytes(), type=State)


def read_about(folder: Path) -> dict[str, Any]:
    """What a training is of.

    Raises:
        InputError: the folder holds none.
    """
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: no training there ({error}); `gpu-stage train` makes one"
        ) from error
    return about


def keep_about(folder: Path, about: dict[str, Any]) -> None:
    """Write down what the training is of, or see that it is the same as what is there.

    Raises:
        ConfigError: the folder holds another training.
    """
    path = folder / ABOUT
    if path.exists():
        there = json.loads(path.read_bytes())
        for key, value in json.loads(json.dumps(about)).items():
            if there.get(key) != value:
                raise ConfigError(
                    f"{folder}: holds a training with another {key} ({there.get(key)}, now "
                    f"{value}); name another folder with --out, or delete this one"
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")
    sync(path)
    sync(folder)
