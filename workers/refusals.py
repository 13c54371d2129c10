"""A refusal read: which of `workers.errors` an error response is.

In: status, headers, body. Out: an exception to raise. Pure. The status may be 200: OpenRouter
answers errors of a generation that has begun in the body, so `error.code` counts before it.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from workers import errors
from workers.errors import Details, RequestError

#: The in-flight budget, by `metadata.limit_source` or `metadata.reason`.
IN_FLIGHT_LIMITS = {"openrouter_in_flight_budget", "in_flight_budget_exhausted"}
#: A budget that is used up, by the same fields; it answers 402 or 403.
BUDGET_LIMITS = {
    "openrouter_guardrail_budget",
    "openrouter_workspace_budget",
    "openrouter_key_limit",
    "key_limit",
}
#: Words of a refusal that concerns money.
CREDITS = re.compile(
    r"insufficient credits|requires more credits|can only afford|key limit exceeded", re.IGNORECASE
)
#: A Cloudflare ban of the client's address, also relayed as text in a provider's error.
BANNED = re.compile(r"error code: 1015")
#: Bans last longer than bursts, and come without a hint.
BAN_S = 60.0
LONGEST_RETRY_AFTER_S = 3600.0
#: More than any response costs or counts: such a number is not believed.
MOST_USD = 1000.0

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
#: OpenRouter's word for an error, for when neither a code nor the status says it.
BY_TYPE = {
    "context_length_exceeded": 400,
    "max_tokens_exceeded": 400,
    "token_limit_exceeded": 400,
    "string_too_long": 400,
    "invalid_request": 400,
    "invalid_prompt": 400,
    "authentication": 401,
    "payment_required": 402,
    "permission_denied": 403,
    "not_found": 404,
    "payload_too_large": 413,
    "unprocessable": 422,
    "rate_limit_exceeded": 429,
    "server": 500,
    "provider_unavailable": 502,
    "provider_overloaded": 503,
    "timeout": 504,
}
#: Words for what no provider accepts of this prompt, though a provider may have said it first.
TOO_LONG = {"context_length_exceeded", "token_limit_exceeded", "string_too_long"}
MODERATION = {"content_policy_violation", "refusal"}
#: A 404 that concerns this prompt's tools or images and not the model.
UNSUPPORTED = re.compile(r"no endpoints found that support (tool|image|audio|file)", re.IGNORECASE)
UNKNOWN_MODEL = re.compile(r"is not a valid model", re.IGNORECASE)
#: Statuses of a proxy that gave up waiting: the generation behind it goes on and is billed.
GAVE_UP = (504, 524)


def refusal(status: int, headers: Mapping[str, str], reply: Any, text: bytes) -> RequestError:
    """The error that a response is."""
    error = reply.get("error") if isinstance(reply, dict) else None
    if not error:
        return _without_error(status, headers, text)
    if not isinstance(error, dict):
        error = {"message": error}
    metadata = as_dict(error.get("metadata"))
    code, message = _code(error, metadata, status), _message(error, metadata)
    kind = _kind(code, error, metadata, message)
    details = Details(
        message=message,
        retry_after_s=_retry_after(headers, error, metadata, message),
        resets_at=_resets_at(metadata),
        cost_usd=cost_usd(reply) or 0.0,
        provider=_provider(reply, metadata),
        body=text,
    )
    return kind(details)


def cost_usd(reply: dict[str, Any]) -> float | None:
    """What a response says it cost; None when it does not, or says what cannot be."""
    for part in (reply, as_dict(reply.get("provider"))):
        cost = number(as_dict(part.get("usage")).get("cost"), MOST_USD)
        if cost is not None:
            return float(cost)
    return None


def number(value: Any, most: float) -> int | float | None:
    """`value` if it is a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= most else None


def as_dict(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def plain(text: str) -> str:
    """`text` as UTF-8 can hold it: JSON can spell half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def excerpt(text: bytes) -> str:
    """The beginning of a body, on one line."""
    return " ".join(text[:600].decode("utf-8", "replace").split())[:200]


def _kind(
    code: int, error: dict[str, Any], metadata: dict[str, Any], message: str
) -> type[RequestError]:
    limits = {
        value
        for name in ("limit_source", "reason", "error_type")
        if isinstance(value := metadata.get(name), str)
    }
    types = _types(error, metadata)
    if limits & IN_FLIGHT_LIMITS:
        return errors.InFlightBudget
    if code in (402, 403) and (CREDITS.search(message) or limits & BUDGET_LIMITS):
        return errors.OutOfCredits
    if BANNED.search(message):
        return errors.RateLimited
    moderated = any(name in metadata for name in ("reasons", "patterns", "flagged_input"))
    if types & MODERATION or (code == 403 and moderated):
        return errors.Moderated
    if "availability" in error:
        return _by_availability(code, as_dict(error["availability"]))
    if code in (400, 401, 403, 404) and message.startswith("Provider returned error"):
        return errors.BadRequest if types & TOO_LONG else errors.ProviderRefused
    if code == 400 and UNKNOWN_MODEL.search(message):
        return errors.NoEndpoint
    if code == 404 and UNSUPPORTED.search(message):
        return errors.BadRequest
    return BY_CODE.get(code, errors.ServerFailed)


def _by_availability(code: int, availability: dict[str, Any]) -> type[RequestError]:
    """Which endpoints there were: `retryable` decides, then whether it is this prompt's fault."""
    if availability.get("retryable") is True:
        return errors.RateLimited if code == 429 else errors.Overloaded
    excluded_by = availability.get("excluded_by")
    fields = [as_dict(availability.get("constraint")).get("field")]
    if isinstance(excluded_by, list):
        fields += excluded_by
    if "context_length" in fields:
        return errors.TooLarge
    if "tools" in fields:
        return errors.BadRequest
    return errors.NoEndpoint if code in (400, 403, 404) else BY_CODE.get(code, errors.ServerFailed)


def _without_error(status: int, headers: Mapping[str, str], text: bytes) -> RequestError:
    """A page of a proxy in between (HTML), or a body of no known shape: go by the status."""
    message = f"HTTP {status}: {excerpt(text)}"
    if 300 <= status < 400:
        message = f"HTTP {status}: redirected to {headers.get('Location')}; not followed"
    wait_s = _retry_after(headers, {}, {}, message)
    details = Details(message, wait_s, may_be_billed=status in GAVE_UP, body=text)
    if BANNED.search(message):
        return errors.RateLimited(details)
    if status in (402, 413, 429, 503, 529):
        return BY_CODE[status](details)
    if status in (401, 403, 404) and not text.lstrip().startswith(b"<"):
        return BY_CODE[status](details)
    return errors.ServerFailed(details)


def _code(error: dict[str, Any], metadata: dict[str, Any], status: int) -> int:
    """`error.code` may be a number, its text, a word, or missing."""
    types = sorted(_types(error, metadata))
    for value in (
        error.get("code"),
        metadata.get("http_status"),
        error.get("http_status"),
        status,
        *(BY_TYPE.get(name) for name in types),
    ):
        try:
            code = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
        if 400 <= code < 600:
            return code
    return 500


def _types(error: dict[str, Any], metadata: dict[str, Any]) -> set[str]:
    """The words for what happened, wherever they stand."""
    found = (metadata.get("error_type"), error.get("error_type"), error.get("code"))
    return {value for value in found if isinstance(value, str)}


def _message(error: dict[str, Any], metadata: dict[str, Any]) -> str:
    """The message with the provider's own words, which alone say what happened."""
    parts = [_words(error.get("message") or error.get("code") or "no message")]
    if metadata.get("raw"):
        parts.append(_words(metadata["raw"]))
    if metadata.get("reasons"):
        parts.append(f"reasons: {_words(metadata['reasons'])}")
    return " ".join(": ".join(parts).split())[:400]


def _words(value: Any) -> str:
    try:
        return plain(value if isinstance(value, str) else repr(value))
    except RecursionError:
        return "nested too deep to show"


def _provider(reply: dict[str, Any], metadata: dict[str, Any]) -> str:
    for name in (metadata.get("provider_name"), reply.get("provider")):
        if name and isinstance(name, str):
            return plain(name)
    return ""


def _retry_after(
    headers: Mapping[str, str], error: dict[str, Any], metadata: dict[str, Any], message: str
) -> float | None:
    """Seconds to wait, from whichever place has them. A hint of 0 is none: it would make the
    fleet hammer a server that has just said no.
    """
    for value in _hints(headers, error, metadata):
        try:
            seconds = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if 0 < seconds < float("inf"):
            return min(seconds, LONGEST_RETRY_AFTER_S)
    return BAN_S if BANNED.search(message) else None


def _resets_at(metadata: dict[str, Any]) -> float | None:
    """When a budget that is used up begins anew, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(metadata["resets_at"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _hints(
    headers: Mapping[str, str], error: dict[str, Any], metadata: dict[str, Any]
) -> Iterator[Any]:
    for part in (headers, as_dict(metadata.get("headers"))):
        lowered = {str(name).lower(): value for name, value in part.items()}
        yield lowered.get("retry-after")
        yield _seconds_until(lowered.get("retry-after"), lowered.get("date"))
    yield metadata.get("retry_after_seconds")
    yield as_dict(error.get("availability")).get("retry_after")


def _seconds_until(date: Any, now: Any) -> float | None:
    """`Retry-After` may be a date; the response's own `Date` says what time it is there."""
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(now)).total_seconds()
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
