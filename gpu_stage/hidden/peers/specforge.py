"""SpecForge's offline data: a `torch.save` file for each sample.

    rows_<g>-<g+2000>/data_<i>.ckpt   input_ids int64 [T], loss_mask int64 [T],
                                      aux_hidden_state bf16 [1, T, 3H], hidden_state bf16 [1, T, H]

`hidden_state` is the last, behind the final norm: so the target's norm is needed both ways.
"""

import gzip
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fleet.errors import ConfigError, InputError
from gpu_stage.engines.final_norm import FinalNorm
from gpu_stage.hidden.peers.plain import Plain

GROUP = 2000
KEYS = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")


def write(folder: Path, samples: Iterator[Plain], norm: FinalNorm | None) -> int:
    """Write samples; how many."""
    norm, count = _needed(norm), 0
    for count, sample in enumerate(samples, start=1):
        number = count - 1
        group = folder / f"rows_{number // GROUP * GROUP}-{(number // GROUP + 1) * GROUP}"
        group.mkdir(exist_ok=True)
        torch.save(
            {
                "input_ids": sample.ids.clone(),
                "loss_mask": sample.mask.long(),
                "hidden_state": norm.of(sample.states[None, :, -1]).contiguous(),
                "aux_hidden_state": sample.states[None, :, :-1].flatten(2).contiguous(),
            },
            group / f"data_{number}.ckpt",
        )
    return count


def read(folder: Path, norm: FinalNorm | None) -> Iterator[Plain]:
    """The samples of a folder, by their numbers.

    Raises:
        InputError: there is none, or a file is not one.
    """
    norm = _needed(norm)
    files = [path for path in folder.rglob("data_*.ckpt*") if re.search(r"_(\d+)\.", path.name)]
    if not files:
        raise InputError(f"{folder}: no data_*.ckpt below it; is it SpecForge's output folder?")
    for path in sorted(files, key=lambda one: int(re.findall(r"_(\d+)\.", one.name)[0])):
        found = _load(path)
        aux, last = found["aux_hidden_state"][0], found["hidden_state"][0]  # [T, 3H], [T, H]
        states = torch.cat((aux.unflatten(1, (3, -1)), norm.before(last)[:, None]), dim=1)
        mask = found["loss_mask"].flatten().bool()
        yield Plain(path.name, found["input_ids"].flatten(), mask, states.to(torch.bfloat16))


def _load(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            found: dict[str, Any] = torch.load(file, weights_only=True)
        lengths = {found[key].numel() for key in KEYS[:2]} | {
            found[key].shape[1] for key in KEYS[2:]
        }
        if len(lengths) != 1:
            raise ValueError(f"tensors of {sorted(lengths)} tokens")
    except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise InputError(f"{path}: not a sample of SpecForge's ({error}); make it again") from error
    return found


def _needed(norm: FinalNorm | None) -> FinalNorm:
    if norm is None:
        raise ConfigError(
            "SpecForge keeps the last state behind the target's final norm: name the target's "
            "folder with --target"
        )
    return norm
