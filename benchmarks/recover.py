"""`python -m benchmarks.recover`: sampled ids found again from text and count, held to the truth.

By the prior alone, and for the first `--rows` of `faithful` by the target's likelihood. What is
tested was never learned from: the prior of one half of `faithful` by prompt is tested on the
other, that of `rtn4` (the same model with coarser weights) on `faithful`. "In place" is the
share of sampled tokens that stand at their bytes in what was found.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.smollm2_rows import Row, Rows
from benchmarks.smollm2_target import Target
from emulator.backends.smollm2_weights import model_folder
from tokens.edit_prior import Known, Prior, learn
from tokens.recover import Effort, Recovered, Text, by_prior, by_target
from tokens.segmentation import Vocabulary, edits

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
HEAD = "| {:34} | {:>5} | {:>17} | {:>12} | {:>14} | {:>18} | {:>7} |"
CUT = "| {:>10} | {:>5} | {:>5} | {:>9} | {:>18} |"
Find = Callable[[Row], Recovered | None]


@dataclass(frozen=True)
class Found:
    """What became of a row."""

    row: Row
    result: Recovered
    #: Sampled tokens at their place, in the canonical ids and in those found.
    before: int
    after: int

    @property
    def exact(self) -> bool:
        return self.result.ids == self.row.sampled


def find_all(rows: Sequence[Row], find: Find, vocabulary: Vocabulary) -> list[Found]:
    """Each row, held to its truth; a row that is not found keeps its canonical ids."""
    found = []
    for row in rows:
        result = find(row) or Recovered(row.canonical, 0.0)
        truth = _placed(row.sampled, vocabulary)
        before, after = (
            len(truth & _placed(ids, vocabulary)) for ids in (row.canonical, result.ids)
        )
        found.append(Found(row, result, before, after))
    return found


def _placed(ids: Sequence[int], vocabulary: Vocabulary) -> set[tuple[int, int]]:
    """Tokens, each with the byte where it ends."""
    ends = accumulate(len(vocabulary.spelling(token)) for token in ids)
    return set(zip(ends, ids, strict=True))


def report(title: str, found: Sequence[Found], seconds: float) -> None:
    """One line: all rows, those whose count agrees, those whose count is off."""
    off = [one for one in found if one.row.off]
    agree = [one for one in found if not one.row.off]
    canonical = sum(one.row.canonical == one.row.sampled for one in found)
    exact = sum(one.exact for one in found)
    print(
        HEAD.format(
            title,
            len(found),
            f"{canonical / len(found):.1%} → {exact / len(found):.1%}",
            f"{sum(one.exact for one in off)}/{len(off)}",
            f"{canonical} → {sum(one.exact for one in agree)}/{len(agree)}",
            _in_place(found),
            f"{seconds / len(found):.2f}",
        ),
        flush=True,
    )


def report_cuts(found: Sequence[Found]) -> None:
    """Rows whose count is off, by how sure the result is; below the cut nothing is changed."""
    print("\n" + CUT.format("confidence", "rows", "exact", "precision", "in place of these"))
    print("|---:" * 5 + "|")
    for threshold in THRESHOLDS:
        kept = [one for one in found if one.row.off and one.result.confidence >= threshold]
        if kept:
            exact = sum(one.exact for one in kept)
            cells = (f"≥ {threshold}", len(kept), exact, f"{exact / len(kept):.0%}")
            print(CUT.format(*cells, _in_place(kept)))
    print(flush=True)


def _in_place(found: Sequence[Found]) -> str:
    sampled = sum(len(one.row.sampled) for one in found)
    before, after = sum(one.before for one in found), sum(one.after for one in found)
    return f"{before / sampled:.2%} → {after / sampled:.2%}"


def measure(title: str, rows: Sequence[Row], find: Find, vocabulary: Vocabulary) -> list[Found]:
    began = time.perf_counter()
    found = find_all(rows, find, vocabulary)
    report(title, found, time.perf_counter() - began)
    return found


def prior_of(rows: Iterable[Row], vocabulary: Vocabulary) -> Prior:
    return learn((Known(row.canonical, row.sampled) for row in rows), vocabulary)


def prior_with_evidence(rows: Iterable[Row], vocabulary: Vocabulary, target: Target) -> Prior:
    """One pass of the target a row."""

    def known(row: Row) -> Known:
        reader = target.reader(row.prompt_ids, row.ending)
        found = list(edits(row.canonical, vocabulary))
        return Known(row.canonical, row.sampled, reader.evidence(row.canonical, found))

    return learn(map(known, rows), vocabulary)


def measure_prior(data: Rows) -> None:
    """The prior alone."""
    faithful, words = data.read("faithful"), data.vocabulary

    def finder(prior: Prior) -> Find:
        return lambda row: by_prior(Text(row.canonical, len(row.sampled)), words, prior)

    crossed: list[Found] = []
    for half in (0, 1):
        find = finder(prior_of((row for row in faithful if row.half != half), words))
        tested = [row for row in faithful if row.half == half]
        crossed += measure(f"prior of half {1 - half}, on half {half}", tested, find, words)
    report_cuts(crossed)
    find = finder(prior_of(data.read("rtn4"), words))
    report_cuts(measure("prior of rtn4", faithful, find, words))


def measure_target(data: Rows, target: Target, count: int) -> None:
    """The target's likelihood, by how much may be scored."""
    rows, words = data.read("faithful")[:count], data.vocabulary
    prior = prior_with_evidence(data.read("rtn4"), words, target)

    def finder(effort: Effort) -> Find:
        return lambda row: by_target(
            Text(row.canonical, len(row.sampled)),
            words,
            prior,
            target.reader(row.prompt_ids, row.ending),
            effort,
        )

    for effort in (Effort(rounds=1), Effort(scored=12), Effort()):
        title = f"target, {effort.scored} scored, rounds {effort.rounds}"
        report_cuts(measure(title, rows, finder(effort), words))


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.recover", description=__doc__)
    parser.add_argument("--rows", type=int, default=400, help="for the target; 0: prior alone")
    arguments = parser.parse_args()
    folder: Path = model_folder()
    data = Rows(folder)
    columns = ("exact", "count off", "count agrees", "in place", "s a row")
    print(HEAD.format("method", "rows", *columns))
    print("|---" + "|---:" * 6 + "|")
    measure_prior(data)
    if arguments.rows:
        measure_target(data, Target(folder), arguments.rows)


if __name__ == "__main__":
    main()
