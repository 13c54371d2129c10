"""A run of its own for each test, with a model of single bytes."""

from collections.abc import Callable
from pathlib import Path

import completions_kit as kit
import pytest

from fleet import run_config
from gpu_stage.recipe import Recipe, recipe_of
from gpu_stage.tokenise import Outcome, tokenise

#: Makes the samples of a part by the recipe as it stands.
Make = Callable[[Path], Outcome]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    return kit.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A run's directory without completions."""
    return kit.write_run(tmp_path / "run", model)


@pytest.fixture
def make(run: Path) -> Make:
    """Makes the samples of a part of `run`."""

    def tokenise_part(part: Path) -> Outcome:
        return tokenise(run, part, recipe(run), lambda *_: None)

    return tokenise_part


def recipe(run: Path) -> Recipe:
    """The recipe of a run as its file stands."""
    return recipe_of(run_config.load(run / "run.toml"))
