"""The training itself: packs in, updates, validations and checkpoints out.

T   slots of a pack    K   steps
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from fleet.errors import FleetError
from gpu_stage.draft.batch import Batch, make_batch
from gpu_stage.draft.model import Draft
from gpu_stage.draft.objective import Outcome, TargetHead, divergence
from gpu_stage.draft.unroll import unroll
from gpu_stage.training import checkpoint
from gpu_stage.training.checkpoint import State
from gpu_stage.training.data import Data, Place, epoch_packs, packs, read
from gpu_stage.training.measures import Measures
from gpu_stage.training.processes import Processes
from gpu_stage.training.settings import TrainFile

BETAS = (0.9, 0.95)


class Diverged(FleetError):
    """Loss or gradients are no numbers any more."""


@dataclass(frozen=True)
class Training:
    """All that a training needs."""

    draft: Draft
    target: TargetHead
    data: Data
    file: TrainFile
    folder: Path
    processes: Processes

    @property
    def device(self) -> torch.device:
        return self.draft.d2t.device

    def step_weights(self) -> Tensor:  # [K]
        return self.file.step_decay ** torch.arange(self.file.steps, dtype=torch.float64)

    def batch(self, group: Sequence[Place]) -> Batch:
        most = self.file.max_length_tokens
        return make_batch([read(place, most) for place in group])


def train(training: Training, tell: Callable[[dict[str, Any]], None]) -> State:
    """Train to the end, from the newest checkpoint on if there is one.

    Args:
        tell: every line of the log.

    Raises:
        Diverged: loss or gradients became NaN or infinite; nothing was saved since.
    """
    file, folder = training.file, training.folder
    learned = [p for p in training.draft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, file.learning_rate, BETAS, weight_decay=0.0)
    state = State()
    if there := checkpoint.all_checkpoints(folder):
        state = checkpoint.resume(there[-1], training.draft, optimizer)
    _cut_log(folder / checkpoint.LOG, state.update)
    total = sum(_updates(training, epoch) for epoch in range(file.epochs))
    began, at_first = time.monotonic(), state.tokens
    for epoch, groups in _schedule(training, state):
        rate = learning_rate(state.update, total, file)
        told, tokens = _update(training, optimizer, groups, rate)
        within = state.within + 1 if epoch == state.epoch else 1
        state = msgspec.structs.replace(
            state, update=state.update + 1, epoch=epoch, within=within, tokens=state.tokens + tokens
        )
        speed = (state.tokens - at_first) / max(time.monotonic() - began, 1e-9)
        _log(training, tell, state, {"of": total, "tokens_s": round(speed)} | told)
        if _is_due(training, state, epoch):
            state = _validated(training, optimizer, state, tell)
            if file.patience and state.worse >= file.patience:
                break
    return state


def _schedule(training: Training, state: State) -> Iterator[tuple[int, list[list[Place]]]]:
    """(epoch, packs of an update) from where a training stands."""
    for epoch in range(state.epoch, training.file.epochs):
        groups = epoch_packs(training.data, training.file, epoch)
        size = training.file.packs
        first = state.within if epoch == state.epoch else 0
        for at in range(first * size, len(groups), size):
            yield epoch, groups[at : at + size]


def _updates(training: Training, epoch: int) -> int:
    groups = len(epoch_packs(training.data, training.file, epoch))
    return math.ceil(groups / training.file.packs)


def learning_rate(update: int, total: int, file: TrainFile) -> float:
    """Rises in a line, falls as a cosine (Loshchilov and Hutter, arXiv 1608.03983, equation 5)."""
    warmup = max(1, round(file.warmup * total))
    if update < warmup:
        return file.learning_rate * (update + 1) / warmup
    share = (update - warmup) / max(1, total - warmup)
    return file.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def _update(
    training: Training,
    optimizer: torch.optim.Optimizer,
    groups: list[list[Place]],
    rate: float,
) -> tuple[dict[str, Any], int]:
    """One step of the optimiser; what it said, and its tokens over all processes."""
    processes, file = training.processes, training.file
    mine = [training.batch(group) for group in groups[processes.rank :: processes.count]]
    counts = torch.zeros(file.steps + 1, dtype=torch.float64)
    for batch in mine:
        counts[:-1] += batch.positions.counts(file.steps)
        counts[-1] += len(batch.ids)
    processes.sum([counts])
    weights = training.step_weights() / counts[:-1].clamp(min=1)
    measures = Measures.none(file.steps)
    optimizer.zero_grad(set_to_none=False)
    for batch in mine:
        outcome = teach(training, batch.to(training.device), weights)
        outcome.loss.backward()
        measures += Measures.of(outcome)
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in learned:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    table = measures.table()
    processes.sum([p.grad for p in learned] + [table])
    norm = torch.nn.utils.clip_grad_norm_(learned, file.clip_norm or math.inf)
    told = Measures.from_table(table).told(training.step_weights())
    if not (math.isfinite(told["loss"]) and math.isfinite(float(norm))):
        raise Diverged(_what_diverged(told["loss"], float(norm), groups))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return told | {"learning_rate": rate, "gradient_norm": float(norm)}, int(counts[-1])


def teach(training: Training, batch: Batch, weights: Tensor) -> Outcome:
    """Loss of one pack, whose `backward` is the caller's.

    Args:
        weights: of one slot at each step, [K].
    """
    draft, steps = training.draft, training.file.steps
    with _precision(training.device):
        # The states are rounded already; float32 keeps what is made of them.
        aux = batch.aux.to(draft.fc.weight.dtype)
        outs = torch.stack(list(unroll(draft, aux, batch.ids, batch.slots, steps)))  # [K, T, H]
        return divergence(
            draft.norm(outs),
            draft.lm_head.weight,
            batch.last,
            training.target,
            batch.positions,
            weights.to(training.device, torch.float32),
        )


def _precision(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def _is_due(training: Training, state: State, epoch: int) -> bool:
    every = training.file.validate_every
    last = state.within == _updates(training, epoch)
    ends = last and epoch + 1 == training.file.epochs
    return ends or (state.update % every == 0 if every else last)


def validate(training: Training, places: Sequence[Place]) -> Measures:
    """Of samples that are not trained on."""
    processes, steps = training.processes, training.file.steps
    groups = packs(places, range(len(places)), training.file)
    measures = Measures.none(steps)
    with torch.no_grad():
        for group in groups[processes.rank :: processes.count]:
            batch = training.batch(group).to(training.device)
            measures += Measures.of(teach(training, batch, torch.ones(steps)))
    table = measures.table()
    processes.sum([table])
    return Measures.from_table(table)


def _validated(
    training: Training,
    optimizer: torch.optim.Optimizer,
    state: State,
    tell: Callable[[dict[str, Any]], None],
) -> State:
    """Validate, and save; what is held out decides which checkpoint is the best."""
    heldout = training.data.heldout
    better = True
    if heldout:
        told = validate(training, heldout).told(training.step_weights())
        loss = told["loss"]
        better = state.best_loss is None or loss < state.best_loss
        best = loss if better else state.best_loss
        state = msgspec.structs.replace(
            state, best_loss=best, worse=0 if better else state.worse + 1
        )
        _log(training, tell, state, {"heldout": told})
    if training.processes.first:
        path = checkpoint.save(training.folder, training.draft, optimizer, state)
        if better:
            checkpoint.name_best(training.folder, path)
        checkpoint.forget(training.folder, training.file.keep)
    training.processes.wait()
    return state


def _log(
    training: Training, tell: Callable[[dict[str, Any]], None], state: State, told: dict[str, Any]
) -> None:
    if not training.processes.first:
        return
    line = {
        "update": state.update,
        "epoch": state.epoch,
        "tokens": state.tokens,
        "unix_s": round(time.time(), 3),
    } | told
    with (training.folder / checkpoint.LOG).open("a") as file:
        file.write(json.dumps(line) + "\n")
    tell(line)


def _cut_log(path: Path, update: int) -> None:
    """Drop what was logged behind the checkpoint: it is done again."""
    if path.exists():
        lines = path.read_text().splitlines()
        kept = [line for line in lines if line and json.loads(line)["update"] <= update]
        path.write_text("".join(line + "\n" for line in kept))


def _what_diverged(loss: float, norm: float, groups: list[list[Place]]) -> str:
    shards = ", ".join(sorted({str(place.shard) for group in groups for place in group}))
    return (
        f"loss {loss}, norm of the gradients {norm}: training has diverged, and the newest "
        f"checkpoint is from before. Lower learning_rate or clip_norm; or the states are damaged: "
        f"`gpu-stage inspect --check` of {shards}"
    )
