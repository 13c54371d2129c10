"""What `gpu-stage train` does: options in, a trained draft out.

Importing it takes torch, so the command line does so when it is called.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fleet.errors import ConfigError
from gpu_stage.console import Exit, err, out
from gpu_stage.hidden import order
from gpu_stage.hidden.target import look_at, pick_device
from gpu_stage.training import checkpoint
from gpu_stage.training.begin import new_draft, target_head, token_counts
from gpu_stage.training.data import Data, open_data
from gpu_stage.training.loop import Training, train
from gpu_stage.training.processes import processes
from gpu_stage.training.settings import TrainFile, load


@dataclass(frozen=True)
class Wishes:
    """Options of `gpu-stage train`, as they were given."""

    source: Path
    out: Path | None
    hidden: Path | None
    target: Path | None
    file: TrainFile
    device: str


def settings(path: Path | None) -> TrainFile:
    """Of a training file, or the defaults."""
    return load(path) if path else TrainFile()


def run_training(wishes: Wishes) -> int:
    """Train a draft, or go on; the exit status.

    Raises:
        ConfigError: an option is wrong, or the folder holds another training.
        InputError: the shards cannot be trained on.
        Diverged: see `loop.train`.
    """
    source = wishes.source.parent if wishes.source.is_file() else wishes.source
    hidden = (wishes.hidden or source / "hidden").resolve()
    folder = (wishes.out or source / "checkpoints").resolve()
    data = open_data(hidden, wishes.file)
    target = _target(wishes, hidden, data)
    with processes(pick_device(wishes.device)) as (group, device):
        draft, coverage = new_draft(target, token_counts(source, data), wishes.file)
        draft = draft.to(device)
        if group.first:
            checkpoint.keep_about(folder, _about(wishes.file, data, target, coverage))
            _begin(data, folder, draft.config.draft_vocab_size, coverage)
        group.wait()
        training = Training(draft, target_head(target, draft), data, wishes.file, folder, group)
        with _Shown(err, quiet=not group.first) as shown:
            state = train(training, shown.tell)
        if group.first:
            out.print(
                f"{state.update:,} updates, {state.tokens:,} tokens; the best draft is "
                f"{folder / checkpoint.BEST}",
                highlight=False,
                soft_wrap=True,
            )
    return Exit.OK


def _target(wishes: Wishes, hidden: Path, data: Data) -> Path:
    """The target's folder, of which the states are."""
    if wishes.target:
        target = wishes.target
    elif (hidden / order.NAME).exists():
        target = Path(order.read(hidden).target_folder)
    else:
        raise ConfigError(f"{hidden}: does not say where the target is; name it with --target")
    if look_at(target).fingerprint != data.contract.target.fingerprint:
        raise ConfigError(
            f"{target}: these are not the weights that the states in {hidden} are of "
            f"({data.contract.target.name}); name those with --target"
        )
    return target


def _about(file: TrainFile, data: Data, target: Path, coverage: float) -> dict[str, Any]:
    return {
        "settings": msgspec.to_builtins(file),
        "target": msgspec.to_builtins(data.contract.target),
        "target_folder": str(target.resolve()),
        "layers": msgspec.to_builtins(data.contract.layers),
        "data": data.fingerprint,
        "samples": {"train": len(data.train), "heldout": len(data.heldout)},
        "vocabulary_coverage": coverage,
    }


def _begin(data: Data, folder: Path, vocabulary: int, coverage: float) -> None:
    there = checkpoint.all_checkpoints(folder)
    err.print(
        f"{len(data.train):,} samples to train on, {len(data.heldout):,} held out; the draft "
        f"knows {vocabulary:,} tokens, {coverage:.2%} of those written"
        + (f"; going on from {there[-1].name}" if there else ""),
        highlight=False,
        soft_wrap=True,
    )
    if not data.heldout:
        err.print("Nothing is held out: the last checkpoint counts as the best", highlight=False)


class _Shown:
    """A bar on a terminal; elsewhere a line a validation."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._bar = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=None, words="")

    def __enter__(self) -> "_Shown":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, line: dict[str, Any]) -> None:
        if "heldout" in line:
            held = line["heldout"]
            steps = " ".join(f"{share:.3f}" for share in held["accuracy"])
            self._console.print(
                f"update {line['update']:,}: held out: loss {held['loss']:.4f}, acceptance length "
                f"{held['acceptance_length']:.3f}, accuracy by step {steps}",
                highlight=False,
                soft_wrap=True,
            )
            return
        steps = " ".join(f"{share:.2f}" for share in line["accuracy"])
        words = f"{line['tokens_s']:,} tokens/s loss {line['loss']:.3f} accuracy {steps}"
        self._bar.update(self._task, completed=line["update"], total=line["of"], words=words)
