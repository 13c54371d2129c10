"""Error replies in the service's shape: `{"error": {"code", "message", "metadata"}}`."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

JSON = b"application/json"
HTML = b"text/html; charset=UTF-8"


class Reply(NamedTuple):
    """A whole HTTP answer that is no completion."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    #: What the books call it.
    outcome: str = ""


def error_object(code: int | str, message: str, metadata: dict[str, Any] | None) -> dict[str, Any]:
    """The value of `error`; `metadata` is left out where there is none."""
    error: dict[str, Any] = {"message": message, "code": code}
    if metadata is not None:
        error["metadata"] = metadata
    return error


def refuse(
    code: int,
    message: str,
    metadata: dict[str, Any] | None = None,
    *,
    retry_after_s: float | None = None,
    availability: dict[str, Any] | None = None,
    outcome: str = "",
) -> Reply:
    """A refusal whose HTTP status equals its code."""
    error = error_object(code, message, metadata)
    if availability is not None:
        error["availability"] = availability
    headers = () if retry_after_s is None else ((b"retry-after", seconds_text(retry_after_s)),)
    body = msgspec.json.encode({"error": error, "user_id": USER_ID})
    return Reply(code, body, headers=headers, outcome=outcome or str(code))


def seconds_text(seconds: float) -> bytes:
    """Seconds as a Retry-After header has them; fractions only where there are some."""
    return f"{seconds:g}".encode()


USER_ID = "user_2emulator0000000000000000000"

UNAUTHORIZED = refuse(401, "Missing Authentication header", outcome="no_key_401")
UNKNOWN_KEY = refuse(401, "User not found.", outcome="unknown_key_401")
NOT_FOUND = refuse(404, "Resource not found", outcome="not_found_404")
NO_CREDITS = refuse(
    402,
    "Insufficient credits. Add more using https://openrouter.ai/credits",
    outcome="balance_402",
)
NOT_MANAGEMENT = refuse(403, "Only management keys can fetch credits for an account")
