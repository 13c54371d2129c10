"""A refusal read: which of `workers.errors` an error response is.

In: status, headers, body. Out: an exception to raise. Pure. The status may be 200: OpenRouter
answers errors of a generation that has begun in the body, so `error.code` counts before it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workers import errors
from workers.errors import Details, RequestError

#: 403 that a budget gave, by `metadata.limit_source` or `metadata.reason`.
BUDGET_LIMITS = (
    "openrouter_guardrail_budget",
    "openrouter_workspace_budget",
    "openrouter_key_limit",
    "key_limit",
)
#: Words of a refusal that concerns money, whatever its status.
CREDITS = re.compile(r"insufficient credits|requires more credits|can only afford", re.IGNORECASE)
#: A Cloudflare ban of the client's address, relayed as text in a provider's error.
BANNED = re.compile(r"error code: 1015")
LONGEST_RETRY_AFTER_S = 3600.0

BY_CODE: dict[int, type[RequestError]] = {
    400: errors.BadRequest,
    401: errors.KeyRefused,
    402: errors.OutOfCredits,
    403: errors.KeyRefused,
    404: errors.NoEndpoint,
    413: errors.TooLarge,
    422: errors.BadRequest,
    429: errors.RateLimited,
    503: errors.Overloaded,
    529: errors.Overloaded,
}


def refusal(status: int, headers: Mapping[str, str], reply: Any, text: bytes) -> RequestError:
    """The error that a response is."""
    error = reply.get("error") if isinstance(reply, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return _without_error_object(status, headers, text)
    metadata = _dict(error.get("metadata"))
    details = Details(
        message=_message(error, metadata),
        retry_after_s=_retry_after(headers, error, metadata),
        cost_usd=_cost(reply),
        provider=str(metadata.get("provider_name") or ""),
        body=text,
    )
    return _kind(_code(error, status), error, metadata, details.message)(details)


def _kind(
    code: int, error: dict[str, Any], metadata: dict[str, Any], message: str
) -> type[RequestError]:
    source = {str(metadata.get("limit_source")), str(metadata.get("reason"))}
    availability = _dict(error.get("availability"))
    if "openrouter_in_flight_budget" in source:
        return errors.InFlightBudget
    if code in (402, 403) and (CREDITS.search(message) or source & set(BUDGET_LIMITS)):
        return errors.OutOfCredits
    if BANNED.search(message):
        return errors.RateLimited
    if code == 400 and message.startswith("Provider returned error"):
        return errors.ProviderRefused
    if code == 403 and (metadata.get("reasons") or metadata.get("patterns")):
        return errors.Moderated
    if availability.get("retryable") and code not in (429, 503):
        return errors.Overloaded
    return BY_CODE.get(code, errors.ServerFailed)


def _without_error_object(status: int, headers: Mapping[str, str], text: bytes) -> RequestError:
    """A page of a proxy in between (HTML), or a body of no known shape: go by the status."""
    message = f"HTTP {status}: " + " ".join(text[:600].decode("utf-8", "replace").split())[:200]
    details = Details(message, _retry_after(headers, {}, {}), body=text)
    if status in (429, 503, 529) or status == 402:
        return BY_CODE[status](details)
    if status in (401, 403, 404) and not text.lstrip().startswith(b"<"):
        return BY_CODE[status](details)
    return errors.ServerFailed(details)


def _code(error: dict[str, Any], status: int) -> int:
    """`error.code` may be a number, its text, a word, or missing."""
    for value in (error.get("code"), _dict(error.get("metadata")).get("http_status")):
        try:
            code = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if 400 <= code < 600:
            return code
    for value in (error.get("http_status"), status):
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return 500


def _message(error: dict[str, Any], metadata: dict[str, Any]) -> str:
    """The message with the provider's own words, which alone say what happened."""
    parts = [str(error.get("message") or error.get("code") or "no message")]
    if metadata.get("raw"):
        parts.append(str(metadata["raw"]))
    if metadata.get("reasons"):
        parts.append(f"reasons: {metadata['reasons']}")
    return " ".join(": ".join(parts).split())[:400]


def _retry_after(
    headers: Mapping[str, str], error: dict[str, Any], metadata: dict[str, Any]
) -> float | None:
    """Seconds to wait, from whichever of the four places has them."""
    for value in _retry_hints(headers, error, metadata):
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return min(seconds, LONGEST_RETRY_AFTER_S)
    return None


def _retry_hints(
    headers: Mapping[str, str], error: dict[str, Any], metadata: dict[str, Any]
) -> Iterator[Any]:
    yield headers.get("Retry-After")
    yield _dict(metadata.get("headers")).get("Retry-After")
    yield metadata.get("retry_after_seconds")
    yield _dict(error.get("availability")).get("retry_after")


def _cost(reply: dict[str, Any]) -> float:
    cost = _dict(reply.get("usage")).get("cost")
    return float(cost) if isinstance(cost, int | float) else 0.0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
