"""Which endpoint serves a request: the `provider` object, as the service documents it.

In: the endpoints, the preferences, the names of the request's parameters, one dice.
Out: the endpoints to try, in order, or the refusal. A base slug (`chutes`) matches all
of a provider's endpoints, a full tag (`chutes/int4`) exactly one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from .config import Endpoint
from .errors import Reply, refuse

#: Parameters that every endpoint takes, or that are OpenRouter's own.
_UNIVERSAL_TEXT = (
    "messages model models provider stream stream_options usage user metadata transforms plugins "
    "route session_id trace debug cache_control include_reasoning"
)
UNIVERSAL = frozenset(_UNIVERSAL_TEXT.split())
_WIDER = {"fp4": ("fp4", "mxfp4", "nvfp4"), "fp8": ("fp8", "mxfp8")}


class MaxPrice(Struct, frozen=True):
    """Most that is paid, in USD per million tokens."""

    prompt: float | None = None
    completion: float | None = None


class Preferences(Struct, frozen=True):
    """The `provider` object of a request; fields that do not matter here are ignored."""

    order: list[str] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    quantizations: list[str] | None = None
    allow_fallbacks: bool | None = True
    require_parameters: bool | None = False
    max_price: MaxPrice | None = None
    sort: str | dict[str, Any] | None = None


class Unroutable(Exception):
    """No endpoint may serve this request."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


def route(
    endpoints: Iterable[Endpoint],
    preferences: Preferences,
    parameters: Iterable[str],
    dice: float,
) -> list[Endpoint]:
    """The endpoints to try, first to last. Unroutable when the preferences leave none."""
    allowed = _allowed(list(endpoints), preferences, set(parameters) - UNIVERSAL)
    ordered = _ordered(allowed, preferences, dice)
    return ordered if preferences.allow_fallbacks is not False else ordered[:1]


def matches(entry: str, endpoint: Endpoint) -> bool:
    """Whether an entry of order, only or ignore means this endpoint."""
    entry, tag = entry.lower(), endpoint.tag.lower()
    return entry in (tag, tag.split("/")[0], endpoint.provider_name.lower())


def _allowed(
    endpoints: list[Endpoint], preferences: Preferences, parameters: set[str]
) -> list[Endpoint]:
    left = endpoints
    for name, keep in _constraints(preferences, parameters):
        kept = [endpoint for endpoint in left if keep(endpoint)]
        if not kept:
            raise Unroutable(_unmatched(endpoints, preferences, name))
        left = kept
    return left


def _constraints(
    preferences: Preferences, parameters: set[str]
) -> Iterable[tuple[str, Callable[[Endpoint], bool]]]:
    """Each constraint that the request sets: its name, and what it lets through."""
    only, ignore = preferences.only, preferences.ignore
    if only:
        yield "allowed_providers", lambda e: any(matches(entry, e) for entry in only)
    if ignore:
        yield (
            "allowed_providers",
            lambda e: not any(matches(entry, e) for entry in ignore),
        )
    if preferences.allow_fallbacks is False and (order := preferences.order):
        yield "allowed_providers", lambda e: any(matches(entry, e) for entry in order)
    if preferences.quantizations:
        wanted = {q for name in preferences.quantizations for q in _WIDER.get(name, (name,))}
        yield "quantization", lambda e: e.quantization in wanted
    if preferences.require_parameters:
        yield "require_parameters", lambda e: parameters <= _supported(e)
    if price := preferences.max_price:
        yield "max_price", lambda e: _affordable(e, price)


def _supported(endpoint: Endpoint) -> set[str]:
    supported = set(endpoint.supported_parameters)
    return supported | {"max_completion_tokens"} if "max_tokens" in supported else supported


def _affordable(endpoint: Endpoint, price: MaxPrice) -> bool:
    prompt = price.prompt is None or endpoint.prompt_usd_per_m <= price.prompt
    completion = price.completion is None or endpoint.completion_usd_per_m <= price.completion
    return prompt and completion


def _ordered(endpoints: list[Endpoint], preferences: Preferences, dice: float) -> list[Endpoint]:
    if preferences.order:
        first = [e for entry in preferences.order for e in endpoints if matches(entry, e)]
        rest = [e for e in _by_price(endpoints) if e not in first]
        return list(dict.fromkeys(first)) + rest
    by = preferences.sort.get("by") if isinstance(preferences.sort, dict) else preferences.sort
    if by == "price":
        return _by_price(endpoints)
    if by in ("throughput", "latency"):
        return sorted(endpoints, key=lambda e: e.latency_factor)
    return _balanced(endpoints, dice)


def _balanced(endpoints: list[Endpoint], dice: float) -> list[Endpoint]:
    """One healthy endpoint by inverse square of price, the others behind it by price."""
    if len(endpoints) == 1:
        return endpoints
    healthy = [e for e in endpoints if e.status >= 0] or endpoints
    first = healthy[-1]
    weights = [e.weight / max(_price(e), 1) ** 2 for e in healthy]
    point = dice * sum(weights)
    for endpoint, weight in zip(healthy, weights, strict=True):
        point -= weight
        if point < 0:
            first = endpoint
            break
    return [first, *(e for e in _by_price(endpoints) if e is not first)]


def _by_price(endpoints: list[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda e: (e.status < 0, _price(e)))


def _price(endpoint: Endpoint) -> float:
    return 1000 * (endpoint.prompt_usd_per_m + endpoint.completion_usd_per_m)


def _unmatched(endpoints: list[Endpoint], preferences: Preferences, constraint: str) -> Reply:
    serving = ", ".join(sorted({e.tag.split("/")[0] for e in endpoints}))
    message = "No allowed providers are available for the selected model."
    if constraint == "allowed_providers":
        permitted = ", ".join(preferences.only or preferences.order or [])
        message += f" Providers serving this model: {serving}, but your request's "
        message += f"provider.only preference permits only: {permitted}."
    else:
        message += f" Your request's {constraint} preference leaves no endpoint."
    availability = {
        "code": "constraint_filtered",
        "retryable": False,
        "excluded_by": [constraint],
        "docs_url": "https://openrouter.ai/docs/errors",
    }
    metadata = {"available_providers": serving.split(", ")}
    return refuse(404, message, metadata, availability=availability, outcome="unrouted_404")
