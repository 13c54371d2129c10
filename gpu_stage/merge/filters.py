"""The columns that the first pass reads, and the filters: reasons that a row carries in itself.

In: a row of a part of samples. Out: why it is not in the set, or None. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_stage.merge.settings import Filters
from gpu_stage.runs import Verdict

#: For a provider that a response does not name.
UNKNOWN = "(unknown)"
FROM_COMPLETIONS = ["prompt_id", "turn", "messages", "tools"]
FROM_SAMPLES = [
    "prompt_id",
    "provider",
    "loss_spans",
    "prompt_length",
    "completion_length",
    "fidelity",
    "finish_reason",
    "cost_usd",
]


class Sent(NamedTuple):
    """A row of FROM_COMPLETIONS."""

    prompt_id: str
    turn: int
    messages: str
    tools: str | None


class Found(NamedTuple):
    """A row of FROM_SAMPLES."""

    prompt_id: str
    provider: str | None
    loss_spans: list[dict[str, int]]
    prompt_length: int
    completion_length: int
    fidelity: str
    finish_reason: str | None
    cost_usd: float | None

    @property
    def length(self) -> int:
        return self.prompt_length + self.completion_length


@dataclass(frozen=True)
class Filter:
    """`[filters]`, for the rows of one run."""

    filters: Filters
    #: The audit's verdict on each provider.
    verdicts: Mapping[str, Verdict]

    def reason(self, dataset: str, found: Found) -> str | None:
        """The first filter that a row does not pass."""
        filters, provider = self.filters, found.provider or UNKNOWN
        most = filters.max_length_tokens
        checks = (
            (found.fidelity in filters.fidelity, f"fidelity: {found.fidelity}"),
            (filters.truncated or found.finish_reason != "length", "truncated"),
            (_among(dataset, filters.only_datasets), "dataset"),
            (_among(provider, filters.only_providers), "provider"),
            (provider not in filters.ignore_providers, "provider"),
            (self._passes(provider), "audit"),
            (not most or found.length <= most, "too long"),
            (found.completion_length >= filters.min_completion_tokens, "too short"),
        )
        return next((reason for passed, reason in checks if not passed), None)

    def _passes(self, provider: str) -> bool:
        verdict = self.verdicts.get(provider, "undecided")
        passing = {"off": True, "not_failed": verdict != "failed", "passed": verdict == "passed"}
        return passing[self.filters.audit]


def _among(name: str, chosen: Sequence[str]) -> bool:
    return not chosen or name in chosen
