"""The runs that a command reads: their directories, parts and what was said of their providers.

In: paths as a user gives them, a run's directory or its run file. Out: a `Run`. Invariant: every
part of completions has its part of samples, row for row, or the run is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fleet import run_config
from fleet.errors import ConfigError, InputError
from fleet.run_config import RunConfig
from gpu_stage.samples import completion_parts, dataset_of, samples_of

Verdict = Literal["passed", "failed", "undecided"]


class AuditFile(msgspec.Struct, frozen=True):
    """What `merge` reads of a run's `audit.json`."""

    #: Display name of a provider → what the audit found.
    verdicts: dict[str, Verdict]


@dataclass(frozen=True)
class Part:
    """A part of completions and what became of its rows."""

    run: str
    dataset: str
    completions: Path
    samples: Path
    rows: int


@dataclass(frozen=True)
class Run:
    """A run's directory."""

    #: The directory's own name.
    name: str
    directory: Path
    #: None when the directory holds no run file.
    config: RunConfig | None

    def parts(self) -> list[Part]:
        """The run's parts, in a fixed order.

        Raises:
            InputError: there is none, or one has no samples, or other rows than its samples.
        """
        found = completion_parts(self.directory)
        if not found:
            raise InputError(f"{self.directory}: no completions there; is it a run's directory?")
        return [self._part(path) for path in found]

    def _part(self, path: Path) -> Part:
        samples = samples_of(self.directory, path)
        if not samples.exists():
            raise InputError(
                f"{path}: has no samples; run `gpu-stage tokens {self.directory}` first"
            )
        rows, others = row_count(path), row_count(samples)
        if rows != others:
            raise InputError(
                f"{samples}: {others:,} rows for {rows:,} completions; move it away and run "
                f"`gpu-stage tokens {self.directory}` again"
            )
        return Part(self.name, dataset_of(path), path, samples, rows)

    def verdicts(self) -> dict[str, Verdict]:
        """The audit's verdict on each provider; empty when there was no audit.

        Raises:
            InputError: `audit.json` is not what the audit writes.
        """
        path = self.directory / "audit.json"
        if not path.exists():
            return {}
        try:
            return msgspec.json.decode(path.read_bytes(), type=AuditFile).verdicts
        except msgspec.DecodeError as error:
            raise InputError(f"{path}: not an audit's result: {error}") from error

    def verdicts_for(self, filter_: str) -> dict[str, Verdict]:
        """The verdicts that a filter asks for.

        Raises:
            ConfigError: it needs an audit and the run has had none.
        """
        if filter_ != "off" and not (self.directory / "audit.json").exists():
            raise ConfigError(
                f'filters.audit = "{filter_}": {self.directory} has no audit.json; audit the run '
                'first, or set it to "off"'
            )
        return self.verdicts()


def open_run(path: Path) -> Run:
    """A run by its directory or its run file.

    Raises:
        ConfigError: there is no such run, or its run file is wrong.
    """
    if path.is_file():
        config = run_config.load(path)
        return Run(config.directory.resolve().name, config.directory, config)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run; name a run's directory or its run file")
    file = path / "run.toml"
    return Run(path.resolve().name, path, run_config.load(file) if file.exists() else None)


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Several runs of one target.

    Raises:
        ConfigError: two have one name, or are of different models.
    """
    runs = [open_run(path) for path in paths]
    by_name: dict[str, Run] = {}
    for run in runs:
        if run.name in by_name:
            raise ConfigError(
                f"two runs are called {run.name!r}: {by_name[run.name].directory} and "
                f"{run.directory}; name each once, or rename a directory"
            )
        by_name[run.name] = run
    models = {run.config.run.model: run.name for run in runs if run.config}
    if len(models) > 1:
        named = "; ".join(f"{name}: {model}" for model, name in models.items())
        raise ConfigError(f"the runs are of different models ({named}); merge those of one target")
    return runs


def row_count(path: Path) -> int:
    """Rows of a Parquet file, by its footer.

    Raises:
        InputError: it is not Parquet.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error}); move it away") from error
