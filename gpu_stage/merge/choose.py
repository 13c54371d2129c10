"""Which of the rows are in the set, and on which side: what only shows between rows.

In: a `Survey`. Out: its table with a reason for every row that is left out, and `heldout` for the
others. Pure but for the signatures' file: the same rows, seed and settings give the same choice.
Of rows that exclude each other the best stays: ids known better, then not truncated, then the
run named first.

What is held out follows from a conversation's opening messages alone. No seed, no other row and no
run moves it, so a set may grow without a prompt changing sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fleet.errors import ConfigError
from gpu_stage.merge.near import near_duplicates
from gpu_stage.merge.rows import Rows
from gpu_stage.merge.settings import Dataset, MergeFile
from gpu_stage.merge.survey import Survey
from gpu_stage.merge.words import Numbers, scrambled

SAME_PROMPT = "same prompt"
SAME_MESSAGES = "same messages"
NEAR_DUPLICATE = "near duplicate"
OVER_CAP = "over the cap"

Places = npt.NDArray[np.int64]


def choose(seen: Survey, settings: MergeFile) -> None:
    """Give every row that is left out its reason, and every other its side."""
    rows = seen.rows
    for reason, column in ((SAME_PROMPT, "prompt"), (SAME_MESSAGES, "messages")):
        _leave_out(seen, repeated(rows, _kept(rows), column), reason)
    if settings.near_duplicates and seen.signatures:
        _leave_out(seen, _nearly_repeated(seen, settings.near_duplicates.threshold), NEAR_DUPLICATE)
    _leave_out(seen, _over_budget(seen, settings), OVER_CAP)
    rows["heldout"] = held_out(rows["conversation"], settings.heldout_share)


def _kept(rows: Rows) -> Places:
    return np.flatnonzero(rows["reason"] == 0)


def _leave_out(seen: Survey, places: Places, reason: str) -> None:
    if len(places):
        seen.rows["reason"][places] = seen.reasons.code(reason)


def best_first(rows: Rows, places: Places) -> Places:
    """Rows in the order in which one is preferred to another."""
    some = rows[places]
    return places[np.lexsort((places, some["truncated"], some["fidelity"]))]


def repeated(rows: Rows, places: Places, column: str) -> Places:
    """All but the best of the rows that share a value."""
    ordered = best_first(rows, places)
    _, first = np.unique(rows[column][ordered], return_index=True)
    return np.delete(ordered, first)


def _nearly_repeated(seen: Survey, threshold: float) -> Places:
    """Rows of conversations whose first prompt is nearly another's."""
    rows = seen.rows
    kept = best_first(rows, _kept(rows))
    _, first = np.unique(rows["conversation"][kept], return_index=True)
    heads = kept[np.sort(first)]  # one row for each conversation, the best conversation first
    if not len(heads) or seen.signatures is None:
        return np.empty(0, np.int64)
    near = near_duplicates(seen.signatures, np.searchsorted(seen.signed, heads), threshold)
    gone = rows["conversation"][seen.signed[near]]
    return kept[np.isin(rows["conversation"][kept], gone)]


def _over_budget(seen: Survey, settings: MergeFile) -> Places:
    """Rows beyond what a dataset may give; conversations are taken whole as far as they fit."""
    rows = seen.rows
    kept = _kept(rows)
    order = scrambled(rows["conversation"] ^ seed_key(settings.seed))
    kept = kept[np.lexsort((rows["turn"][kept], order[kept]))]
    codes = {name: code for code, name in enumerate(seen.datasets)}
    there = {
        name: int(rows["masked"][kept][rows["dataset"][kept] == code].sum(dtype=np.int64))
        for name, code in codes.items()
    }
    over = [np.empty(0, np.int64)]
    for name, limit in budgets(there, settings.datasets).items():
        if name in codes:
            mine = kept[rows["dataset"][kept] == codes[name]]
            over.append(mine[np.cumsum(rows["masked"][mine], dtype=np.int64) > limit])
    return np.concatenate(over)


def budgets(there: Mapping[str, int], datasets: list[Dataset]) -> dict[str, int]:
    """Most tokens of each dataset that has a cap or a weight.

    Weights are shares: datasets that have one give as much as there is in these proportions,
    and nothing twice. The scarcest gives all it may. Fractions of what is written, since a token
    that rounding takes from a limit can cost the conversation that just fitted.

    Args:
        there: tokens of each dataset.

    Raises:
        ConfigError: a dataset with a weight has no tokens.
    """
    limits = {
        dataset.name: min(there.get(dataset.name, 0), dataset.cap_tokens or 1 << 62)
        for dataset in datasets
    }
    weighted = {
        dataset.name: Fraction(str(dataset.weight)) for dataset in datasets if dataset.weight
    }
    for name in weighted:
        if not limits[name]:
            raise ConfigError(
                f"dataset {name} has a weight and no row of it is left, so there is no such "
                "mixture; take its weight away"
            )
    if weighted:
        unit = min(limits[name] / weight for name, weight in weighted.items())
        limits.update({name: int(unit * weight) for name, weight in weighted.items()})
    return limits


def held_out(conversations: Numbers, share: float) -> npt.NDArray[np.bool_]:
    """Whether conversations are held out: their hash is below the share of all hashes."""
    return np.asarray(conversations < np.uint64(int(share * 2**64)))


def shuffled(rows: Rows, places: Places, seed: int) -> Places:
    """Rows in the set's order, which follows from prompts and seed alone."""
    order = scrambled(rows["prompt"][places] ^ seed_key(seed))
    return places[np.argsort(order, kind="stable")]


def seed_key(seed: int) -> np.uint64:
    return np.uint64(scrambled(np.array([seed], np.uint64))[0])
