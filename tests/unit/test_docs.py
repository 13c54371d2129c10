"""The documentation names everything that a user can set or will find."""

import re
from pathlib import Path

import msgspec
import pytest
import typer

from fleet import run_config, settings
from fleet.schemas import COMPLETIONS, PROMPTS
from gpu_stage.cli import cli as gpu_stage_cli
from gpu_stage.merge import settings as merge_settings
from gpu_stage.merge.schema import DROPPED, SET
from gpu_stage.samples import SAMPLES
from producer.cli import cli

ROOT = Path(__file__).parents[2]


def _names(*pages: str) -> set[str]:
    """Everything that stands between backticks, and the words of the commands."""
    text = "".join((ROOT / page).read_text("utf-8") for page in pages)
    return set(re.findall(r"`([^`\n]+)`", text)) | set(re.findall(r"[\w./-]+", text))


@pytest.mark.parametrize(
    "table",
    [
        run_config.Run,
        run_config.Sampling,
        run_config.Providers,
        run_config.Tokens,
        run_config.Dataset,
    ],
    ids=lambda table: table.__name__,
)
def test_every_key_of_the_run_file_is_documented(table: type[msgspec.Struct]) -> None:
    """docs/run-file.md has every key."""
    assert set(table.__struct_fields__) <= _names("docs/run-file.md")


@pytest.mark.parametrize(
    "table",
    [
        merge_settings.MergeFile,
        merge_settings.Filters,
        merge_settings.Dataset,
        merge_settings.EvaluationSet,
        merge_settings.NearDuplicates,
    ],
    ids=lambda table: table.__name__,
)
def test_every_key_of_a_merge_file_is_documented(table: type[msgspec.Struct]) -> None:
    """docs/merge.md has every key, and every column of a set."""
    names = _names("docs/merge.md")
    assert {*table.__struct_fields__, *SET.names, *DROPPED.names} <= names


def test_every_environment_variable_is_documented() -> None:
    """docs/run-file.md has every variable that fleet/settings.py reads."""
    source = Path(settings.__file__).read_text("utf-8")
    variables = set(re.findall(r'"((?:OPENROUTER|REDIS|EAGLE_FLEET)_[A-Z_]+)"', source))
    assert variables
    documented = _names("docs/run-file.md")
    assert variables - {"REDIS_PASSWORD"} <= documented


def test_every_column_is_documented() -> None:
    """docs/files.md has every column of the Parquet files."""
    assert {*COMPLETIONS.names, *PROMPTS.names, *SAMPLES.names} <= _names("docs/files.md")


def test_every_command_is_in_the_readme() -> None:
    """The README shows every subcommand of `producer`."""
    commands = set(typer.main.get_command(cli).commands)  # type: ignore[attr-defined]
    text = (ROOT / "README.md").read_text("utf-8")
    missing = {name for name in commands if not re.search(rf"producer {name}\b", text)}
    assert missing <= {"resume"}, "resume is named beside pause"


def test_every_command_of_the_gpu_stage_is_in_the_readme() -> None:
    """The README shows every subcommand of `gpu-stage`."""
    commands = set(typer.main.get_command(gpu_stage_cli).commands)  # type: ignore[attr-defined]
    text = (ROOT / "README.md").read_text("utf-8")
    assert commands and all(f"gpu-stage {name}" in text for name in commands)


def test_links_between_pages_lead_somewhere() -> None:
    """No page links to a file that is not there."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
