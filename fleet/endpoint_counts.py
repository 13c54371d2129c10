"""What the ledger knows of each endpoint: who served what, at what price, how fast, how well."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fleet.transitions import NANO


@dataclass(frozen=True)
class EndpointCounts:
    """One endpoint, by its tag; by its display name where only that is known."""

    tag: str
    provider: str
    #: It may be asked.
    allowed: bool
    #: Why not, where the policy says so.
    off: str
    in_flight: int
    #: Most requests in flight there, as the pace has it now.
    limit: int
    #: Seconds until it is asked again; 0 when it is not resting.
    resting_s: float
    #: Its circuit is open or half open: at most single requests probe it.
    circuit_open: bool
    asked: int
    done: int
    #: Answers that said 429, and that failed otherwise.
    throttles: int
    failures: int
    #: Of these, the ones that another provider or model answered.
    wrong: int
    #: Answers tokenised as they came, those that no sample can be made of, and why the last not.
    verified: int
    unusable: int
    unusable_last: str
    prompt_tokens: int
    tokens: int
    spent_usd: float
    #: Latency of what was done, in seconds: mean and, within a tenth, two quantiles.
    latency_mean_s: float
    latency_p50_s: float
    latency_p95_s: float
    #: How many were done by class of latency: `latency_bound_s` is a class's upper bound.
    latency_classes: Mapping[int, int]
    #: Message of its last failure.
    last_error: str
    #: Highest price, US dollars per million tokens.
    prompt_usd_per_m: float
    completion_usd_per_m: float

    @property
    def error_rate(self) -> float:
        """Failures and throttles among what came back."""
        back = self.done + self.throttles + self.failures
        return (self.throttles + self.failures) / back if back else 0.0


def endpoint_counts(fields: Mapping[str, str], routes: Collection[str]) -> list[EndpointCounts]:
    """Read the hash `endpoints`: what serves most comes first.

    Args:
        routes: tags of those that may be asked.
    """
    groups: dict[str, dict[str, str]] = {}
    for key, value in fields.items():
        tag, _, name = key.rpartition("|")
        groups.setdefault(tag, {})[name] = value
    found = [_counts(tag, group, tag in routes) for tag, group in groups.items()]
    return sorted(found, key=lambda e: (not e.allowed, -e.done, -e.asked, e.tag))


def _counts(tag: str, fields: Mapping[str, str], allowed: bool) -> EndpointCounts:
    def number(name: str) -> float:
        return float(fields.get(name) or 0)

    done = int(number("done"))
    histogram = {
        int(name.removeprefix("latency")): int(value)
        for name, value in fields.items()
        if name.startswith("latency") and name != "latency"
    }
    return EndpointCounts(
        tag=tag,
        provider=fields.get("provider", ""),
        allowed=allowed,
        off=fields.get("off", ""),
        in_flight=int(number("in_flight")),
        limit=int(number("limit")),
        resting_s=max(0.0, number("cool_until") / 1000 - time.time()),
        circuit_open=number("half") > 0,
        asked=int(number("asked")),
        done=done,
        throttles=int(number("throttles")),
        failures=int(number("failures")),
        wrong=int(number("wrong")),
        verified=int(number("verified")),
        unusable=int(number("unusable")),
        unusable_last=fields.get("unusable_last", ""),
        prompt_tokens=int(number("prompt_tokens")),
        tokens=int(number("tokens")),
        spent_usd=number("spent") / NANO,
        latency_mean_s=number("latency") / done / 1000 if done else 0.0,
        latency_p50_s=_quantile(histogram, 0.5),
        latency_p95_s=_quantile(histogram, 0.95),
        latency_classes=histogram,
        last_error=fields.get("last", ""),
        prompt_usd_per_m=number("prompt_price") * 1e6 / NANO,
        completion_usd_per_m=number("completion_price") * 1e6 / NANO,
    )


def _quantile(histogram: Mapping[int, int], q: float) -> float:
    """Seconds, in the middle of a class."""
    left = q * sum(histogram.values())
    for index, count in sorted(histogram.items()):
        left -= count
        if left <= 0:
            return latency_bound_s(index - 0.5)
    return 0.0


def latency_bound_s(latency_class: float) -> float:
    """Upper bound of a class; they grow by the fourth root of 2 from 1 ms (`lua/commit.lua`)."""
    return float(2 ** ((latency_class + 1) / 4) / 1000)
