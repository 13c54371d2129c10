"""Which samples of a run are held against the target.

In: a run's samples. Out: the rows that count, up to so many tokens of each provider. Only samples
whose ids are known are taken (docs/audit.md says how much the others would bias it). The choice
depends on prompt ids alone, which are hashes: a second audit takes the same ones, and more of them
when the run has grown or more tokens are asked for.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_stage.part_rows import read_rows
from gpu_stage.runs import Part, Run

#: How far ids must be known.
FIDELITIES = ("exact", "counted")
UNKNOWN = "(unknown)"


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
    #: Log-probabilities that the provider stated, from the completion's first token on.
    stated: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """Rows of parts, and what there is beside them."""

    rows: Mapping[Path, tuple[Part, frozenset[int]]]
    #: Completion tokens of each provider whose ids are known; and rows that are not, by fidelity.
    tokens: Mapping[str, int]
    left_out: Mapping[str, int]


def choose(run: Run, tokens: int) -> Choice:
    """
    Args:
        tokens: most completion tokens of a provider; 0: all.
    """
    rows = defaultdict[str, list[tuple[str, int, int, int]]](list)
    left_out, parts = defaultdict[str, int](int), run.parts()
    for number, part in enumerate(parts):
        columns = ["prompt_id", "provider", "completion_length", "fidelity"]
        for place, (prompt_id, provider, length, fidelity) in enumerate(
            read_rows(part.samples, columns)
        ):
            if fidelity in FIDELITIES:
                rows[provider or UNKNOWN].append((prompt_id, number, place, length))
            else:
                left_out[fidelity] += 1
    taken = defaultdict[int, set[int]](set)
    for mine in rows.values():
        left = tokens or sum(length for *_, length in mine)
        for _, number, place, length in sorted(mine):
            if left <= 0:
                break
            taken[number].add(place)
            left -= length
    return Choice(
        {parts[n].samples: (parts[n], frozenset(places)) for n, places in sorted(taken.items())},
        {provider: sum(length for *_, length in mine) for provider, mine in sorted(rows.items())},
        dict(sorted(left_out.items())),
    )


def read_chosen(part: Part, places: frozenset[int], *, logprobs: bool) -> Iterator[Chosen]:
    """The chosen rows of a part.

    Args:
        logprobs: whether to look for stated log-probabilities in the responses.
    """
    columns = ["prompt_id", "provider", "endpoint", "input_ids", "loss_spans"]
    replies = read_rows(part.completions, ["response"]) if logprobs else iter(())
    for place, row in enumerate(read_rows(part.samples, columns)):
        reply = next(replies, (None,))[0]
        if place in places:
            prompt_id, provider, endpoint, ids, spans = row
            yield Chosen(
                part.dataset,
                provider or UNKNOWN,
                endpoint or UNKNOWN,
                prompt_id,
                ids,
                [(span["start"], span["end"]) for span in spans],
                _stated(reply, sum(span["end"] - span["start"] for span in spans)),
            )


def _stated(reply: str | None, tokens: int) -> tuple[float, ...]:
    """Log-probabilities of a response, where there is one for each token; engines leave out that
    of the end token or not."""
    try:
        entries: list[Any] = json.loads(reply or "")["choices"][0]["logprobs"]["content"]
        found = tuple(float(entry["logprob"]) for entry in entries)
    except (ValueError, KeyError, IndexError, TypeError):
        return ()
    return found if len(found) in (tokens, tokens - 1) else ()
