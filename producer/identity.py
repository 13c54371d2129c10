"""What frozen prompts were made from, and how that differs from what is asked now.

In: a dataset, its files, model and sampling. Out: an `Identity`, kept in the metadata of
`prompts/<dataset>.parquet`, and a sentence on what changed. Invariant: contents of files are
not read; a file is the same when path, size and time of change are.
"""

from pathlib import Path
from typing import Any

import msgspec

from fleet.errors import ConfigError, InputError
from fleet.run_config import Dataset, Sampling
from producer.sources import Source, resolve

FILES_SHOWN = 3


class Identity(msgspec.Struct, frozen=True):
    """What the prompts of a dataset depend on."""

    #: Path, bytes and time of change (nanoseconds) of each file.
    sources: list[tuple[str, int, int]]
    #: The dataset's options that shape its prompts.
    options: dict[str, Any]
    model: str
    #: `Sampling.identity()`.
    sampling: dict[str, Any]


def identity(dataset: Dataset, sources: list[Source], model: str, sampling: Sampling) -> Identity:
    options = {
        "column": dataset.column,
        "template": dataset.template,
        "turns": dataset.turns,
        "system": dataset.system,
    }
    files = [(str(source.path), source.size_bytes, source.mtime_ns) for source in sources]
    return Identity(files, options, model, sampling.identity())


def check_same_target(path: Path, frozen: Identity, asked: Identity) -> None:
    """The frozen prompt ids hold only for the model and sampling they were made for.

    Raises:
        ConfigError: one of them differs.
    """
    for name, was, now in (
        ("run.model", frozen.model, asked.model),
        ("sampling", frozen.sampling, asked.sampling),
    ):
        if was != now:
            raise ConfigError(
                f"{path}: frozen for {name} = {was}, the run file now says {now}; set it back, "
                "or start in another directory (nothing bought yet? delete its prompts/)"
            )


def what_changed(dataset: Dataset, base: Path, frozen: Identity, asked: Identity) -> str | None:
    """A sentence for the user if files or options are not those that were frozen, else None."""
    parts = [
        f"`{name}` was {frozen.options.get(name)!r} and is {value!r}"
        for name, value in asked.options.items()
        if frozen.options.get(name) != value
    ]
    parts += _changed_files(dataset, base, frozen)
    if not parts:
        return None
    return (
        f"dataset {dataset.name}: {'; '.join(parts)}. The prompts frozen before are kept; "
        "to read the dataset anew start in another directory (nothing bought yet? delete prompts/)"
    )


def _changed_files(dataset: Dataset, base: Path, frozen: Identity) -> list[str]:
    try:
        now = {source.path: source for source in resolve(dataset.patterns(), base)}
    except InputError as error:
        return [f"the files cannot be found any more ({error})"]
    was = {Path(path): (size, mtime) for path, size, mtime in frozen.sources}
    changed = [path for path in now if path in was and now[path][2:] != was[path]]
    parts = [
        _listed("new", [path for path in now if path not in was]),
        _listed("gone", [path for path in was if path not in now]),
        _listed("changed", changed),
    ]
    return [part for part in parts if part]


def _listed(what: str, paths: list[Path]) -> str:
    if not paths:
        return ""
    names = ", ".join(path.name for path in paths[:FILES_SHOWN])
    more = f" and {len(paths) - FILES_SHOWN:,} more" if len(paths) > FILES_SHOWN else ""
    return f"{what} since: {names}{more}"
