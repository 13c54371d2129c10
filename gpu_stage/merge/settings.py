"""`merge.toml`: what goes into a training set, as frozen structs.

In: a TOML file, or none. Out: a `MergeFile`, checked whole, or a `ConfigError` that names the
file, the key and the value. What differs from one call to the next, the runs and the folder of
the set, is on the command line; all that shapes the set is here, so that a file repeats it.
"""

from pathlib import Path
from typing import Literal

import msgspec

from fleet.errors import ConfigError
from fleet.run_config import NAME
from fleet.toml_file import read_toml

#: From the best known ids to the least. `unverified` is taken only when asked for.
FIDELITIES = ("exact", "counted", "recovered", "near", "unverified")
#: A bit of each row's mask of matches.
MOST_EVALUATION_SETS = 64

Fidelity = Literal["exact", "counted", "recovered", "near", "unverified"]


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[filters]`: which samples may be in the set at all."""

    #: How far ids must be known.
    fidelity: tuple[Fidelity, ...] = ("exact", "counted", "recovered", "near")
    #: Whether answers that were cut off at `max_tokens` are taken.
    truncated: bool = False
    #: Most tokens of prompt and completion together; longer ones are left out whole. 0 is off.
    max_length_tokens: int = 0
    #: Fewest tokens of a completion.
    min_completion_tokens: int = 0
    #: Datasets taken; empty: all.
    only_datasets: list[str] = []
    #: Display names of providers taken; empty: all.
    only_providers: list[str] = []
    #: Display names of providers left out.
    ignore_providers: list[str] = []
    #: `passed`: only providers that the run's `audit.json` says have passed; `not_failed`: all
    #: but those that it says have failed; `off`: whatever it says.
    audit: Literal["off", "not_failed", "passed"] = "off"


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[datasets]]` table: how much of a dataset is taken."""

    name: str
    #: Most completion tokens; 0 is off.
    cap_tokens: int = 0
    #: Share beside the other datasets with a weight; 0 is off (all up to the cap).
    weight: float = 0.0


class EvaluationSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[evaluation_sets]]` table: prompts that must not be trained on."""

    name: str
    #: JSON Lines or Parquet, relative to the file.
    path: str
    #: Column that holds the prompt; absent: recognised.
    column: str | None = None


class NearDuplicates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[near_duplicates]`: drop prompts that are nearly another's; absent: off."""

    #: Jaccard similarity of the prompts' shingles from which two count as one.
    threshold: float = 0.8


class MergeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of a merge file."""

    #: Orders the set, and chooses what a cap keeps. It does not move the held-out split.
    seed: int = 0
    #: Share of the conversations that is held out.
    heldout_share: float = 0.01
    #: Tokens in one part file, and about a quarter of the bytes that sorting one takes.
    part_tokens: int = 16_000_000
    filters: Filters = Filters()
    datasets: list[Dataset] = []
    evaluation_sets: list[EvaluationSet] = []
    near_duplicates: NearDuplicates | None = None


def load(path: Path) -> MergeFile:
    """Read and check a merge file; the paths of evaluation sets become absolute.

    Raises:
        ConfigError: the file is missing, is not TOML, or a key is wrong.
    """
    file = read_toml(path, MergeFile, "leave `-c` out for the defaults")
    for problem in _problems(file):
        raise ConfigError(f"{path}: {problem}")
    base = path.resolve().parent
    sets = [msgspec.structs.replace(s, path=str(base / s.path)) for s in file.evaluation_sets]
    return msgspec.structs.replace(file, evaluation_sets=sets)


def _problems(file: MergeFile) -> list[str]:
    filters, near = file.filters, file.near_duplicates
    checks: list[tuple[object, str]] = [
        (
            0 <= file.seed < 1 << 63,
            f"seed = {file.seed}: must be 0 or more, below 2^63",
        ),
        (
            0 <= file.heldout_share < 1,
            f"heldout_share = {file.heldout_share}: must be in [0, 1)",
        ),
        (file.part_tokens >= 1, f"part_tokens = {file.part_tokens}: must be 1 or more"),
        (filters.fidelity, "filters.fidelity is empty: name at least one"),
        (
            near is None or 0 < near.threshold <= 1,
            f"near_duplicates.threshold = {near and near.threshold}: must be in (0, 1]",
        ),
        (
            len(file.evaluation_sets) <= MOST_EVALUATION_SETS,
            f"{len(file.evaluation_sets)} [[evaluation_sets]]: at most {MOST_EVALUATION_SETS}; "
            "join some files",
        ),
        *(
            (value >= 0, f"filters.{name} = {value}: must be 0 (off) or more")
            for name, value in (
                ("max_length_tokens", filters.max_length_tokens),
                ("min_completion_tokens", filters.min_completion_tokens),
            )
        ),
        *_repeats("[[datasets]]", [dataset.name for dataset in file.datasets]),
        *_repeats("[[evaluation_sets]]", [chosen.name for chosen in file.evaluation_sets]),
    ]
    for dataset in file.datasets:
        name = dataset.name
        checks += [
            (
                dataset.cap_tokens >= 0,
                f"dataset {name}: cap_tokens = {dataset.cap_tokens}: must be 0 (off) or more",
            ),
            (
                0 <= dataset.weight < float("inf"),
                f"dataset {name}: weight = {dataset.weight}: must be 0 (off) or more",
            ),
        ]
    return [message for ok, message in checks if not ok]


def _repeats(table: str, names: list[str]) -> list[tuple[object, str]]:
    named = [
        (NAME.fullmatch(name), f"{table} name {name!r}: letters, digits, '.', '_', '-'")
        for name in names
    ]
    return [*named, (len(set(names)) == len(names), f"{table} repeats: {', '.join(names)}")]
