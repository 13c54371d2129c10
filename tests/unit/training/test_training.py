"""Training: it learns, goes on to the same bits, and does not care how many processes it has."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_kit as kit
from safetensors.torch import load_file

from fleet.errors import ConfigError, InputError
from gpu_stage.hidden.inspect import shards_below
from gpu_stage.training import checkpoint
from gpu_stage.training.data import epoch_packs, open_data
from gpu_stage.training.loop import Diverged, learning_rate, train, validate
from gpu_stage.training.settings import TrainFile, load

LENGTHS = [12, 20, 16, 8, 24, 18, 30, 14, 22, 10, 26, 12]
Line = dict[str, Any]


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with hidden states, and its target."""
    return kit.write_states(tmp_path_factory.mktemp("states"), LENGTHS)


def lines_of(folder: Path) -> list[Line]:
    """The log without what the clock says."""
    lines = [json.loads(line) for line in (folder / checkpoint.LOG).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("unix_s", "tokens_s")} for line in lines]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.all_checkpoints(folder)[-1] / checkpoint.WEIGHTS)


def test_it_overfits_a_handful_of_samples(states: tuple[Path, Path], tmp_path: Path) -> None:
    """More than 95 % of the guesses are the target's likeliest token, at every step."""
    settings = {"epochs": 200, "learning_rate": 1e-2, "pack_tokens": 400, "heldout_share": 0.0}
    training = kit.training_of(*states, tmp_path / "out", **settings)
    handful = replace(training.data, train=training.data.train[:6])
    # Random weights are sure of nothing; a target that was trained is.
    sure = replace(training.target, rows=training.target.rows * 8)
    training = replace(training, data=handful, target=sure)
    train(training, lambda _: None)
    found = validate(training, training.data.train).told(training.step_weights())
    assert min(found["accuracy"]) > 0.95
    assert found["acceptance_length"] > 3.8


def test_a_training_that_was_cut_off_goes_on_to_the_same_bits(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    """Weights, losses and order of the data, from the checkpoint on, in the middle of an epoch."""
    settings = {"validate_every": 2, "packs": 2, "keep": 9}
    whole = kit.training_of(*states, tmp_path / "whole", **settings)
    train(whole, lambda _: None)

    class Cut(Exception):
        pass

    def cut(line: Line) -> None:
        if line["update"] == 3:
            raise Cut

    with pytest.raises(Cut):
        train(kit.training_of(*states, tmp_path / "cut", **settings), cut)
    train(kit.training_of(*states, tmp_path / "cut", **settings), lambda _: None)
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    ours, theirs = weights_of(tmp_path / "cut"), weights_of(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_processes_train_as_one(states: tuple[Path, Path], tmp_path: Path) -> None:
    """The command under torchrun, with gloo: the same losses and the same weights but for the order
    in which numbers are added."""
    run, target = states
    config = tmp_path / "train.toml"
    settings = kit.SMALL | {"packs": 2}
    config.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    command = ["-m", "gpu_stage", "train", str(run), "--target", str(target), "-c", str(config)]
    command += ["--device", "cpu", "--out"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for start, name in (([], "one"), (torchrun, "two")):
        arguments = [sys.executable, *start, *command, str(tmp_path / name)]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = lines_of(tmp_path / "one"), lines_of(tmp_path / "two")
    assert [line["update"] for line in one] == [line["update"] for line in two]
    for ours, theirs in zip(two, one, strict=True):
        ours, theirs = ours.get("heldout", ours), theirs.get("heldout", theirs)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["accuracy"] == theirs["accuracy"]
    ours, theirs = weights_of(tmp_path / "two"), weights_of(tmp_path / "one")
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_what_is_held_out_is_never_trained_on(states: tuple[Path, Path]) -> None:
    """Prompts fall on one side by their ids, whatever the order; every other one is in an epoch
    once."""
    file = TrainFile(**kit.SMALL)
    data = open_data(states[0] / "hidden", file)
    heldout = {place.prompt_id for place in data.heldout}
    for epoch in (0, 1):
        seen = [p.prompt_id for group in epoch_packs(data, file, epoch) for p in group]
        assert sorted(seen) == sorted(p.prompt_id for p in data.train)
        assert not heldout & set(seen)
    first, second = (epoch_packs(data, file, epoch) for epoch in (0, 1))
    assert first != second
    assert len(heldout) + len(data.train) == len(LENGTHS)


def test_the_best_checkpoint_is_kept_whatever_its_age(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    """With the newest; the others go."""
    training = kit.training_of(*states, tmp_path / "out", keep=1, epochs=6, learning_rate=0.05)
    train(training, lambda _: None)
    left = {path.name for path in checkpoint.all_checkpoints(tmp_path / "out")}
    best = (tmp_path / "out" / checkpoint.BEST).resolve().name
    losses = {
        line["update"]: line["heldout"]["loss"]
        for line in lines_of(tmp_path / "out")
        if "heldout" in line
    }
    assert best == f"step-{min(losses, key=losses.__getitem__):08}"
    assert left == {best, f"step-{max(losses):08}"}


def test_training_ends_when_nothing_gets_better(states: tuple[Path, Path], tmp_path: Path) -> None:
    """After `patience` validations."""
    settings = {"epochs": 60, "patience": 2, "learning_rate": 0.05}
    state = train(kit.training_of(*states, tmp_path / "out", **settings), lambda _: None)
    assert state.worse == 2
    assert state.epoch < 59


def test_states_that_are_no_numbers_end_it_with_a_word(
    states: tuple[Path, Path], tmp_path: Path
) -> None:
    """And no checkpoint is written of them."""
    training = kit.training_of(*states, tmp_path / "out")
    with torch.no_grad():
        training.draft.fc.weight[0, 0] = torch.nan
    with pytest.raises(Diverged, match=r"diverged.*Lower learning_rate.*part-"):
        train(training, lambda _: None)
    assert not checkpoint.all_checkpoints(tmp_path / "out")


def test_another_training_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Other settings would go on from weights that were made otherwise."""
    checkpoint.keep_about(tmp_path, {"settings": {"steps": 7}})
    checkpoint.keep_about(tmp_path, {"settings": {"steps": 7}})
    with pytest.raises(ConfigError, match=r"another settings.*--out"):
        checkpoint.keep_about(tmp_path, {"settings": {"steps": 3}})


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    """Training never goes on without some of its samples."""
    run, _ = kit.write_states(tmp_path, [12, 12, 12])
    (shard, *_) = shards_below(run / "hidden")
    shard.unlink()
    with pytest.raises(InputError, match=rf"{shard.name}: is gone"):
        open_data(run / "hidden", TrainFile())


def test_the_rate_rises_and_falls() -> None:
    """A line to the top, a cosine to nothing."""
    file = TrainFile(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(update, 100, file) for update in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(
    "text", ["steps = 0", "learning_rate = 0", "heldout_share = 1", "stepps = 3", "clip_norm = -1"]
)
def test_a_wrong_key_or_value_is_refused(text: str, tmp_path: Path) -> None:
    """By the file's name and the key's."""
    path = tmp_path / "train.toml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=text.split()[0]):
        load(path)
