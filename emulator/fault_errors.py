"""Faults that are an HTTP error: a status, headers and a body, as clients reported them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from .errors import HTML, Reply, refuse, seconds_text


class Scene(NamedTuple):
    """What an error mentions of the request that it answers."""

    provider_name: str
    model: str
    context_length: int
    max_tokens: int
    retry_after_s: float


_RAW_429 = (
    "{model} is temporarily rate-limited upstream. Please retry shortly, or add your own key "
    "to accumulate your rate limits: https://openrouter.ai/settings/integrations"
)
_UPGRADE = "visit https://openrouter.ai/settings/credits and upgrade to a paid account"


def reply_to(kind: str, scene: Scene) -> Reply:
    """The reply of an error kind."""
    if kind.startswith("html_"):
        return html_page(int(kind.removeprefix("html_")))
    return _MAKERS[kind](scene)._replace(outcome=kind)


def html_page(status: int) -> Reply:
    """A page by Cloudflare (52x) or nginx, where JSON was asked for."""
    if status == 502:
        text = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
        text += "<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n"
        return Reply(502, (text + "</body>\r\n</html>\r\n").encode(), HTML, outcome="html_502")
    title = f"openrouter.ai | {status}: {_CLOUDFLARE.get(status, 'Error')}"
    text = f'<!DOCTYPE html>\n<html lang="en-US">\n<head>\n<title>{title}</title>\n'
    text += f'</head>\n<body>\n<div id="cf-error-details"><h1>Error code {status}</h1></div>\n'
    page = (text + "</body>\n</html>\n").encode()
    return Reply(status, page, HTML, outcome=f"html_{status}")


_CLOUDFLARE = {
    520: "Web server is returning an unknown error",
    521: "Web server is down",
    522: "Connection timed out",
    523: "Origin is unreachable",
    524: "A timeout occurred",
    525: "SSL handshake failed",
    526: "Invalid SSL certificate",
    527: "Railgun error",
    528: "Origin error",
    529: "The service is overloaded",
}


def _plain(
    code: int, message: str, metadata: dict[str, Any] | None = None
) -> Callable[[Scene], Reply]:
    return lambda scene: refuse(code, message, metadata)


def _provider(code: int, raw: str, **more: Any) -> Callable[[Scene], Reply]:
    def reply(scene: Scene) -> Reply:
        text = raw.replace("{model}", scene.model)
        metadata = {"raw": text, "provider_name": scene.provider_name, **more}
        return refuse(code, "Provider returned error", metadata)

    return reply


def _context_length(scene: Scene) -> Reply:
    return too_long(scene.context_length, scene.context_length + 1)


def too_long(context_length: int, requested: int) -> Reply:
    """400: prompt and max_tokens together do not fit."""
    message = (
        f"This endpoint's maximum context length is {context_length} tokens. However, you "
        f"requested about {requested} tokens. Please reduce the length of either one, or use "
        "the context-compression plugin."
    )
    metadata = {"error_type": "context_length_exceeded", "provider_name": None}
    return refuse(400, message, metadata, outcome="context_length_400")


def afford(max_tokens: int, affordable: int) -> Reply:
    """402: the balance could not pay for max_tokens."""
    message = (
        f"This request requires more credits, or fewer max_tokens. You requested up to "
        f"{max_tokens} tokens, but can only afford {affordable}. To increase, {_UPGRADE}"
    )
    return refuse(402, message, {"provider_name": None}, outcome="afford_402")


def in_flight(retry_after_s: float) -> Reply:
    """402 that is a limit of concurrency: to be tried again."""
    message = (
        "This request would exceed your available credits given your current in-flight "
        "requests. Retry after in-flight requests settle, or add credits."
    )
    metadata = {
        "reason": "in_flight_budget_exhausted",
        "limit_source": "openrouter_in_flight_budget",
    }
    return refuse(402, message, metadata, retry_after_s=retry_after_s, outcome="in_flight_402")


def _weight(scene: Scene) -> Reply:
    metadata = {"reason": "weight_exceeds_budget", "limit_source": "openrouter_credits"}
    return refuse(402, "This request alone would exceed your available credits.", metadata)


def _moderation(scene: Scene) -> Reply:
    metadata = {
        "reasons": ["violence"],
        "flagged_input": "a flagged part of the input",
        "provider_name": scene.provider_name,
        "model_slug": scene.model,
    }
    message = f"{scene.model} requires moderation on {scene.provider_name}. Your input was flagged"
    return refuse(403, message, metadata)


def _budget(scene: Scene) -> Reply:
    metadata = {
        "limit_source": "openrouter_workspace_budget",
        "limit_usd": 100,
        "spend_usd": 100.02,
        "resets_at": (datetime.now(UTC) + timedelta(seconds=scene.retry_after_s)).isoformat(),
    }
    return refuse(403, "Workspace budget exceeded", metadata)


def _limited_metadata(scene: Scene) -> Reply:
    seconds = scene.retry_after_s
    metadata = {
        "raw": _RAW_429.replace("{model}", scene.model),
        "provider_name": scene.provider_name,
        "is_byok": False,
        "retry_after_seconds": seconds,
        "retry_after_seconds_raw": seconds,
        "headers": {"Retry-After": seconds_text(seconds).decode()},
        "limit_source": "upstream_provider_shared_pool",
        "previous_errors": [],
    }
    return refuse(429, "Provider returned error", metadata)


def _limited_header(scene: Scene) -> Reply:
    reply = _provider(429, _RAW_429)(scene)
    return reply._replace(headers=((b"retry-after", seconds_text(scene.retry_after_s)),))


def _unavailable_header(scene: Scene) -> Reply:
    message = "Service temporarily unavailable"
    return refuse(503, message, retry_after_s=scene.retry_after_s)


def _limited_free(scene: Scene) -> Reply:
    message = (
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model "
        "requests per day"
    )
    headers = {"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0"}
    headers["X-RateLimit-Reset"] = "1893456000000"
    return refuse(429, message, {"headers": headers, "provider_name": None})


def _availability(status: int, code: str, message: str) -> Callable[[Scene], Reply]:
    """The newest shape: error_type and http_status beside the message, and no error.code."""

    def reply(scene: Scene) -> Reply:
        availability = {
            "code": code,
            "retryable": True,
            "retry_after": scene.retry_after_s,
            "requested_models": [scene.model],
            "docs_url": "https://openrouter.ai/docs/errors",
        }
        error = {"message": message, "error_type": code, "http_status": status}
        body = msgspec.json.encode({"error": {**error, "availability": availability}})
        return Reply(status, body)

    return reply


_MAKERS: dict[str, Callable[[Scene], Reply]] = {
    "context_length_400": _context_length,
    "provider_400": _provider(400, '{"error":{"message":"bad request","type":"invalid"}}'),
    "unauthorized_401": _plain(401, "User not found."),
    "credits_402": _plain(
        402, "Insufficient credits. Add more using https://openrouter.ai/credits"
    ),
    "afford_402": lambda scene: afford(scene.max_tokens, max(1, scene.max_tokens // 2)),
    "prompt_limit_402": _plain(
        402, f"Prompt tokens limit exceeded: 230799 > 91442. To increase, {_UPGRADE}"
    ),
    "in_flight_402": lambda scene: in_flight(scene.retry_after_s),
    "weight_402": _weight,
    "key_limit_402": _plain(
        402,
        "This request would exceed the key's spending limit.",
        {"limit_source": "openrouter_key_limit"},
    ),
    "moderation_403": _moderation,
    "budget_403": _budget,
    "not_found_404": _plain(404, "Resource not found"),
    "timeout_408": _plain(408, "Operation timed out. Please try again later."),
    "conflict_409": _plain(409, "Conflict"),
    "gone_410": _plain(410, "Gone"),
    "precondition_412": _plain(412, "Precondition failed"),
    "too_large_413": _plain(413, "Payload too large"),
    "unprocessable_422": _plain(422, "Unprocessable entity"),
    "rate_limit_429": _provider(429, _RAW_429),
    "rate_limit_429_header": _limited_header,
    "rate_limit_429_metadata": _limited_metadata,
    "rate_limit_429_cloudflare": _provider(429, "error code: 1015"),
    "rate_limit_429_free": _limited_free,
    "capacity_429": _availability(429, "capacity_exhausted", "No capacity for this model"),
    "closed_499": _plain(499, "Client closed request"),
    "server_500": _plain(500, "Internal Server Error"),
    "provider_502": _provider(502, "upstream connect error", error_type="provider_unavailable"),
    "unavailable_503": _plain(503, "Service temporarily unavailable"),
    "unavailable_503_header": _unavailable_header,
    "availability_503": _availability(
        503, "temporarily_unavailable", "The model is temporarily unavailable"
    ),
    "timeout_504": _plain(504, "Gateway timeout", {"error_type": "timeout"}),
    "timeout_524": _plain(524, "Request timed out. Please try again later."),
    "overloaded_529": _provider(529, "overloaded", error_type="provider_overloaded"),
}
