"""A small target, a run with hidden states, and a training of them."""

from pathlib import Path
from typing import Any

import hidden_kit
from rich.console import Console

from gpu_stage.extract_command import Wishes, work_for
from gpu_stage.hidden import order
from gpu_stage.hidden.extract import extract_here
from gpu_stage.training.begin import new_draft, target_head, token_counts
from gpu_stage.training.data import open_data
from gpu_stage.training.loop import Training
from gpu_stage.training.processes import Processes
from gpu_stage.training.settings import TrainFile

SMALL: dict[str, Any] = {
    "steps": 3,
    "epochs": 3,
    "pack_tokens": 48,
    "draft_vocab_size": 300,
    "heldout_share": 0.3,
}


def write_states(folder: Path, lengths: list[int]) -> tuple[Path, Path]:
    """A run with samples of these lengths and their states; the run, and its target."""
    target = hidden_kit.write_target(folder / "llama", "llama")
    run = hidden_kit.write_run(folder / "run", lengths)
    # A shard of about 200 tokens.
    size = str(200 * 4 * hidden_kit.HIDDEN * 2)
    wishes = Wishes(run, None, target, "resident", "bf16", "", size, 64, "cpu", "0")
    work = work_for(wishes)
    order.keep(work.folder, work.order)
    extract_here(work, Console(quiet=True))
    return run, target


def training_of(run: Path, target: Path, out: Path, **settings: Any) -> Training:
    file = TrainFile(**(SMALL | settings))
    data = open_data(run / "hidden", file)
    draft, _ = new_draft(target, token_counts(run, data), file)
    out.mkdir(exist_ok=True)
    return Training(draft, target_head(target, draft), data, file, out, Processes())
