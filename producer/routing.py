"""How requests are shared out to the allowed endpoints: the run file's `routing` as `Route`s.

In: the allowed endpoints. Out: what the ledger and the workers are told. Pure. Which endpoint a
request goes to is then decided on the ledger, request by request (`fleet/lua/_endpoints.lua`).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fleet.run_config import RunConfig
from fleet.transitions import ANY_ENDPOINT, NANO, Route
from producer.endpoints import Endpoint

#: The fleet starts with this many requests in flight and doubles from there.
START_IN_FLIGHT = 256
#: Each endpoint starts with at least so many.
LEAST_START = 4


def routes(
    config: RunConfig, endpoints: Sequence[Endpoint], *, evenly: bool = False
) -> list[Route]:
    """The endpoints that requests may go to, the first choice first.

    Args:
        evenly: every endpoint gets the same part, whatever the run file says.
    """
    if config.providers.routing == "openrouter" and not evenly:
        return [_any(config, endpoints)]
    start = min(START_IN_FLIGHT, config.run.concurrency)
    return [
        Route(
            tag=endpoint.tag,
            provider=endpoint.provider_name,
            prompt_nusd=endpoint.prompt_usd * NANO,
            completion_nusd=endpoint.completion_usd * NANO,
            request_nusd=endpoint.request_usd * NANO,
            weight=1.0 if evenly else _weight(endpoint),
            start=max(LEAST_START, round(start * share)),
        )
        for endpoint, share in shares(config, endpoints, evenly=evenly)
    ]


def shares(
    config: RunConfig, endpoints: Sequence[Endpoint], *, evenly: bool = False
) -> list[tuple[Endpoint, float]]:
    """Each endpoint's expected part of the requests while none refuses, the first choice first."""
    ranked = sorted(endpoints, key=lambda e: _rank(config, e))
    if is_ranked(config) and not evenly:
        parts = _ranked_shares(config, len(ranked))
    else:
        parts = [1.0 if evenly else _weight(endpoint) for endpoint in ranked]
    return [(e, part / sum(parts)) for e, part in zip(ranked, parts, strict=True)]


def is_ranked(config: RunConfig) -> bool:
    """Whether the first endpoint that takes requests gets all but the share for the others."""
    return config.providers.routing in ("cheapest", "order")


def provider_names(endpoints: Sequence[Endpoint]) -> dict[str, str]:
    """Display name → what is booked under it: the tag, or the name where it has several tags."""
    counts = Counter(endpoint.provider_name for endpoint in endpoints)
    return {
        e.provider_name: e.tag if counts[e.provider_name] == 1 else e.provider_name
        for e in endpoints
    }


def provider_field(config: RunConfig, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The request's `provider` object, where it is not the worker that names the endpoint."""
    field: dict[str, Any] = {"require_parameters": True}
    if config.providers.routing == "openrouter":
        field["only"] = [endpoint.tag for endpoint in endpoints]
    return field


def _any(config: RunConfig, endpoints: Sequence[Endpoint]) -> Route:
    """OpenRouter chooses: the dearest may answer, so its prices are what a reservation holds."""
    return Route(
        tag=ANY_ENDPOINT,
        provider="",
        prompt_nusd=max(e.prompt_usd for e in endpoints) * NANO,
        completion_nusd=max(e.completion_usd for e in endpoints) * NANO,
        request_nusd=max(e.request_usd for e in endpoints) * NANO,
        start=min(START_IN_FLIGHT, config.run.concurrency),
    )


def _rank(config: RunConfig, endpoint: Endpoint) -> tuple[float, ...]:
    if config.providers.routing != "order":
        return endpoint.price
    names = (endpoint.tag, endpoint.tag.partition("/")[0])
    only = config.providers.only
    return (min(only.index(name) for name in names if name in only), *endpoint.price)


def _weight(endpoint: Endpoint) -> float:
    """Inverse square of price, as OpenRouter balances; a free one counts as very cheap."""
    return 1 / max(endpoint.completion_usd * 1e6, 0.01) ** 2


def _ranked_shares(config: RunConfig, count: int) -> list[float]:
    if count == 1:
        return [1.0]
    share = config.providers.share_for_others
    return [1 - share] + [share / (count - 1)] * (count - 1)
