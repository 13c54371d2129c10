"""Faults that are an HTTP 200 with a body that is no completion."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import HTML, JSON, error_object
from .fault_errors import html_page
from .wire import Head


def error_for(head: Head) -> dict[str, Any]:
    """The error that such bodies carry: a provider's 429 that came too late for a status."""
    metadata = {"raw": "Too Many Requests", "provider_name": head.provider}
    return error_object(429, "Provider returned error", metadata)


def body_of(kind: str, head: Head) -> tuple[bytes, bytes]:
    """Body and content type."""
    if kind == "html_200":
        return html_page(524).body, HTML
    if kind == "empty_200":
        return b"", JSON
    return msgspec.json.encode(_value(kind, head)), JSON


def _value(kind: str, head: Head) -> dict[str, Any]:
    error = error_for(head)
    match kind:
        case "error_200":
            return {"error": error, "user_id": "user_2emulator"}
        case "error_200_null_fields":
            return {**_nulls(), "error": error}
        case "error_200_empty_choices":
            return {**_named(head), "choices": [], "error": error}
        case "error_200_string_code":
            return {"error": {**error, "code": "server_error", "message": "Upstream error"}}
        case "null_choices":
            return {**_named(head), "choices": None, "usage": None}
        case "empty_choices":
            return {**_named(head), "choices": []}
        case "missing_choices":
            return _named(head)
        case "nested_under_provider":
            return {**_nulls(), "provider": {**_named(head), "choices": [_choice()]}}
    raise ValueError(f"no body for fault {kind}")


def _named(head: Head) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "provider": head.provider,
    }


def _nulls() -> dict[str, Any]:
    fields = (
        "id",
        "choices",
        "created",
        "model",
        "object",
        "system_fingerprint",
        "usage",
    )
    return dict.fromkeys(fields)


def _choice() -> dict[str, Any]:
    message = {"role": "assistant", "content": " An answer in the wrong place."}
    return {"index": 0, "message": message, "finish_reason": "stop"}
