"""The listing of a model's endpoints, read: one `Endpoint` for each provider's offer.

In: `GET /models/{author}/{slug}/endpoints`. Out: plain records. Pure. Fields may be missing, null
or of another type: what cannot be read is None, and the policy says what it makes of that.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Stands for an override that cannot be read: no price that it may raise is fixed.
UNREADABLE = {"prompt": None, "completion": None, "request": None}


@dataclass(frozen=True)
class Endpoint:
    """One provider's offer of the model."""

    tag: str
    #: Display name, as responses bear it.
    provider_name: str
    #: As OpenRouter spells it; `unknown` where it does not say.
    quantization: str
    #: Highest price there may be to pay, in US dollars per token; None: there is no fixed one.
    prompt_price: float | None
    completion_price: float | None
    #: US dollars per request, on top.
    request_usd: float = 0.0
    context_length: int | None = None
    #: Longest answer; None: no limit but the context is published.
    max_completion_tokens: int | None = None
    supported_parameters: tuple[str, ...] | None = None
    #: 0 healthy, -2 degraded, -5 down: read off recorded listings, nowhere documented.
    status: int = 0
    #: Percent of the last 30 minutes in which most requests succeeded.
    uptime: float | None = None
    #: Medians of the last 30 minutes; only told with a key.
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    #: Fields that the policy reads and that have another type here, each with its value.
    odd: tuple[str, ...] = ()

    @property
    def prompt_usd(self) -> float:
        """US dollars per prompt token, of an endpoint that has a price."""
        return self.prompt_price or 0.0

    @property
    def completion_usd(self) -> float:
        """US dollars per completion token, of an endpoint that has a price."""
        return self.completion_price or 0.0

    @property
    def price(self) -> tuple[float, float]:
        """What endpoints are ranked by: completions are most of the cost. None is dearest."""
        prices = (self.completion_price, self.prompt_price)
        first, second = (math.inf if price is None else price for price in prices)
        return first, second

    def record(self) -> dict[str, Any]:
        return asdict(self)


def read_listing(data: Mapping[str, Any]) -> list[Endpoint]:
    """The endpoints of a listing's `data`; what is no object is passed over."""
    listed = data.get("endpoints")
    return [_endpoint(raw) for raw in _list(listed) if isinstance(raw, dict)]


def _endpoint(raw: dict[str, Any]) -> Endpoint:
    pricing = raw.get("pricing")
    pricing = pricing if isinstance(pricing, dict) else {}
    parameters = raw.get("supported_parameters")
    completion = _highest(pricing, "completion")
    reasoning = _highest(pricing, "internal_reasoning") if _prices_reasoning(pricing) else 0.0
    return Endpoint(
        tag=_text(raw.get("tag")),
        provider_name=_text(raw.get("provider_name")),
        quantization=_text(raw.get("quantization")) or "unknown",
        prompt_price=_highest(pricing, "prompt"),
        # Where reasoning has a price of its own, any token of an answer may be one.
        completion_price=None
        if completion is None or reasoning is None
        else max(completion, reasoning),
        request_usd=_highest(pricing, "request") or 0.0,
        context_length=_whole(raw.get("context_length")),
        max_completion_tokens=_whole(raw.get("max_completion_tokens")),
        supported_parameters=tuple(map(str, parameters)) if isinstance(parameters, list) else None,
        status=int(_number(raw.get("status")) or 0),
        uptime=_number(raw.get("uptime_last_30m")),
        tokens_per_s=_median(raw.get("throughput_last_30m")),
        first_token_s=_median(raw.get("latency_last_30m"), 1000),
        odd=tuple(_odd(raw)),
    )


def _odd(raw: Mapping[str, Any]) -> Iterator[str]:
    """What is there and cannot be read. Prices are not among it: they are None, not fixed."""
    for name, fits in FIELDS.items():
        value = raw.get(name)
        if value is not None and not fits(value):
            yield f"{name} = {str(value)[:40]!r}"


def _prices_reasoning(pricing: Mapping[str, Any]) -> bool:
    return any(part.get("internal_reasoning") is not None for part in _with_overrides(pricing))


def _highest(pricing: Mapping[str, Any], name: str) -> float | None:
    """The price, or a higher one that long prompts or times of day bring; None below 0: no fixed
    price (OpenRouter lists -1), or none that can be read.
    """
    prices = [_number(part.get(name)) for part in _with_overrides(pricing) if name in part]
    found = [price for price in prices if price is not None]
    return max(found) if found and len(found) == len(prices) and min(found) >= 0 else None


def _with_overrides(pricing: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield pricing
    overrides = pricing.get("overrides")
    if overrides is not None and not _is_list(overrides):
        yield UNREADABLE
    for part in _list(overrides):
        nested = part.get("pricing") if isinstance(part, dict) else UNREADABLE
        yield nested if isinstance(nested, dict) else part


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return _number(value) is not None


#: What the policy reads, and the type that it has.
FIELDS: dict[str, Callable[[Any], bool]] = {
    "tag": _is_text,
    "provider_name": _is_text,
    "quantization": _is_text,
    "context_length": _is_number,
    "max_completion_tokens": _is_number,
    "supported_parameters": _is_list,
    "status": _is_number,
    "uptime_last_30m": _is_number,
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    """Prices come as text."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number > 0 else None


def _median(value: Any, unit: float = 1) -> float | None:
    median = _number(value.get("p50") if isinstance(value, dict) else value)
    return None if median is None else median / unit
