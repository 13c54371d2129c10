"""Which samples of a run are held against the target.

In: a run's samples. Out: the rows that count, up to so many tokens of each provider. Only samples
whose ids are known are taken (docs/audit.md says how much the others would bias it). Those that
were measured before are always among them, so that what a later audit counts contains what an
earlier one counted; the rest is chosen by prompt ids, which are hashes.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_stage.part_rows import read_rows
from gpu_stage.runs import Part, Run

#: How far ids must be known.
FIDELITIES = ("exact", "counted")
UNKNOWN = "(unknown)"
#: A token that is less likely is not sampled: the number is none.
LEAST_LOGPROB = -100.0


@dataclass(frozen=True)
class Chosen:
    """A sample that is held against the target."""

    dataset: str
    provider: str
    #: Tag of the endpoint that was asked.
    endpoint: str
    prompt_id: str
    ids: list[int]
    #: Half-open ranges of `ids` that the provider's model wrote.
    spans: list[tuple[int, int]]
    #: Log-probabilities that the provider stated, from the completion's first token on: of samples
    #: whose ids came with them, so that each belongs to its token.
    stated: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """Rows of parts, and what there is beside them."""

    rows: Mapping[Path, tuple[Part, frozenset[int]]]
    samples: int
    #: Completion tokens of each provider whose ids are known; and rows that are not, by fidelity.
    tokens: Mapping[str, int]
    left_out: Mapping[str, int]


def choose(run: Run, tokens: int, measured: Set[tuple[str, str]] = frozenset()) -> Choice:
    """
    Args:
        tokens: most completion tokens of a provider; 0: all.
        measured: dataset and prompt of samples that were chosen before.
    """
    rows = defaultdict[str, list[tuple[bool, str, int, int, int]]](list)
    left_out, parts = defaultdict[str, int](int), run.parts()
    for number, part in enumerate(parts):
        columns = ["prompt_id", "provider", "completion_length", "fidelity"]
        for place, (prompt_id, provider, length, fidelity) in enumerate(
            read_rows(part.samples, columns)
        ):
            if fidelity in FIDELITIES:
                new = (part.dataset, prompt_id) not in measured
                rows[provider or UNKNOWN].append((new, prompt_id, number, place, length))
            else:
                left_out[fidelity] += 1
    taken = defaultdict[int, set[int]](set)
    for mine in rows.values():
        left = tokens or sum(length for *_, length in mine)
        for new, _, number, place, length in sorted(mine):
            if new and left <= 0:
                break
            taken[number].add(place)
            left -= length
    return Choice(
        {parts[n].samples: (parts[n], frozenset(places)) for n, places in sorted(taken.items())},
        sum(map(len, taken.values())),
        {provider: sum(length for *_, length in mine) for provider, mine in sorted(rows.items())},
        dict(sorted(left_out.items())),
    )


def read_chosen(part: Part, places: frozenset[int], *, logprobs: bool) -> Iterator[Chosen]:
    """The chosen rows of a part.

    Args:
        logprobs: whether to look for stated log-probabilities in the responses.
    """
    columns = ["prompt_id", "provider", "endpoint", "fidelity", "input_ids", "loss_spans"]
    replies = read_rows(part.completions, ["response"]) if logprobs else iter(())
    for place, row in enumerate(read_rows(part.samples, columns)):
        reply = next(replies, (None,))[0]
        if place in places:
            prompt_id, provider, endpoint, fidelity, ids, spans = row
            known = reply if fidelity == "exact" else None
            yield Chosen(
                part.dataset,
                provider or UNKNOWN,
                endpoint or UNKNOWN,
                prompt_id,
                ids,
                [(span["start"], span["end"]) for span in spans],
                _stated(known, sum(span["end"] - span["start"] for span in spans)),
            )


def _stated(reply: str | None, tokens: int) -> tuple[float, ...]:
    """Log-probabilities of a response, where there is one for each token; engines leave out that
    of the end token or not."""
    try:
        entries: list[Any] = json.loads(reply or "")["choices"][0]["logprobs"]["content"]
        found = tuple(float(entry["logprob"]) for entry in entries)
    except (ValueError, KeyError, IndexError, TypeError):
        return ()
    whole = len(found) in (tokens, tokens - 1) and all(map(math.isfinite, found))
    # -9999 stands for "unknown" with some engines.
    return found if whole and min(found, default=0) > LEAST_LOGPROB else ()
