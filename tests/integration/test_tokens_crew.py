"""Processes that make samples side by side: one that dies costs its part, and says which."""

from pathlib import Path

import completions_kit as kit
import psutil
import pytest

from fleet import run_config
from gpu_stage import crew
from gpu_stage.recipe import recipe_of
from gpu_stage.samples import samples_of
from gpu_stage.token_run import tokenise_here
from gpu_stage.tokenise import BATCH_ROWS, Outcome


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory without completions."""
    return kit.write_run(tmp_path / "run", kit.write_model(tmp_path / "model"))


def test_a_process_that_dies_is_named_and_the_others_go_on(run: Path) -> None:
    """Killed in the middle of a part, it fails that part alone; the part is made the next time."""
    long = kit.write_part(run, [kit.row(n, "long " * 400) for n in range(30 * BATCH_ROWS)])
    short = [kit.write_part(run, [kit.row(n)]) for n in range(3)]
    config = run_config.load(run / "run.toml")
    events = crew.make(run, [long, *short], recipe_of(config), processes=1)
    assert isinstance(next(events), crew.Judged)
    for child in psutil.Process().children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    rest = [event for event in events if not isinstance(event, crew.Judged)]
    (failed,) = (event for event in rest if isinstance(event, crew.Failed))
    assert failed.part == long and "SIGKILL" in failed.why
    finished = [event for event in rest if isinstance(event, crew.Finished)]
    assert sorted(event.part for event in finished) == sorted(short)
    assert {event.outcome for event in finished} == {Outcome.MADE}
    assert not samples_of(run, long).exists()
    made = tokenise_here(config, processes=1)
    assert made.outcomes == {Outcome.UP_TO_DATE: 3, Outcome.MADE: 1}
    assert len(kit.samples(run, long)) == 30 * BATCH_ROWS


def test_several_processes_make_each_part_once(run: Path) -> None:
    """All rows of all parts, each in its place."""
    parts = [kit.write_part(run, [kit.row(n * 10 + k) for k in range(n + 1)]) for n in range(5)]
    made = tokenise_here(run_config.load(run / "run.toml"), processes=2)
    assert (made.rows, made.outcomes) == (15, {Outcome.MADE: 5})
    for n, part in enumerate(parts):
        ids = [row["prompt_id"] for row in kit.samples(run, part)]
        assert ids == [f"{n * 10 + k:032x}" for k in range(n + 1)]


def test_a_part_that_cannot_be_read_fails_alone(run: Path) -> None:
    """The others are made, and its name is said."""
    good, bad = kit.write_part(run, [kit.row(0)]), kit.write_part(run, [kit.row(1)])
    bad.write_bytes(b"PAR1 torn")
    made = tokenise_here(run_config.load(run / "run.toml"), processes=1)
    assert list(made.failed) == [bad] and bad.name in made.failed[bad]
    assert len(kit.samples(run, good)) == 1
