"""The read-only part of the API: models, endpoints, key, credits, generation."""

from __future__ import annotations

from typing import Any

from .books import now
from .config import Endpoint, Model
from .money import NANO, usd_text
from .state import Emulator

ARCHITECTURE = {
    "modality": "text+image->text",
    "input_modalities": ["text", "image"],
    "output_modalities": ["text"],
    "tokenizer": "Other",
    "instruct_type": None,
}


def models(emulator: Emulator) -> dict[str, Any]:
    """GET /models: the one model."""
    model = emulator.config.model
    best = min(emulator.endpoints.values(), key=lambda e: e.completion_usd_per_m)
    entry = {
        "id": model.id,
        "canonical_slug": model.canonical_slug,
        "hugging_face_id": model.hugging_face_id,
        "name": model.name,
        "created": model.created,
        "description": "Served by an emulator.",
        "context_length": best.context_length,
        "architecture": ARCHITECTURE,
        "pricing": pricing(best),
        "top_provider": {
            "context_length": best.context_length,
            "max_completion_tokens": best.max_completion_tokens or None,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": best.supported_parameters,
        "default_parameters": {},
    }
    return {"data": [entry], "total_count": 1, "links": {"next": None}}


def endpoints(emulator: Emulator) -> dict[str, Any]:
    """GET /models/{author}/{slug}/endpoints."""
    model = emulator.config.model
    return {
        "data": {
            "id": model.id,
            "name": model.name,
            "created": model.created,
            "description": "Served by an emulator.",
            "architecture": ARCHITECTURE,
            "endpoints": [_endpoint(model, e) for e in emulator.endpoints.values()],
        }
    }


def _endpoint(model: Model, endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": f"{endpoint.provider_name} | {model.canonical_slug}",
        "model_id": model.id,
        "model_name": model.name,
        "context_length": endpoint.context_length,
        "pricing": pricing(endpoint),
        "provider_name": endpoint.provider_name,
        "tag": endpoint.tag,
        "quantization": endpoint.quantization or None,
        "max_completion_tokens": endpoint.max_completion_tokens or None,
        "max_prompt_tokens": None,
        "supported_parameters": endpoint.supported_parameters,
        "status": endpoint.status,
        "uptime_last_5m": endpoint.uptime,
        "uptime_last_30m": endpoint.uptime,
        "uptime_last_1d": endpoint.uptime,
        "supports_implicit_caching": False,
        "supports_tool_choice": dict.fromkeys(("auto", "none", "required", "function"), True),
        "native_tools": {},
        "service_tier": None,
        "latency_last_30m": None,
        "throughput_last_30m": None,
    }


def pricing(endpoint: Endpoint) -> dict[str, Any]:
    """Prices as published: strings, USD per token; `discount` is a number."""
    return {
        "prompt": usd_text(endpoint.prompt_nano),
        "completion": usd_text(endpoint.completion_nano),
        "request": "0",
        "image": "0",
        "discount": 0,
    }


def key(emulator: Emulator, label: str) -> dict[str, Any]:
    """GET /key: the cheap balance probe."""
    books = emulator.books
    usage = books.spent_nano / NANO
    periods = dict.fromkeys(("usage", "usage_daily", "usage_weekly", "usage_monthly"), usage)
    return {
        "data": {
            "label": label,
            "limit": books.balance_nano / NANO if books.limited else None,
            "limit_remaining": books.remaining_nano / NANO if books.limited else None,
            "limit_reset": None,
            "include_byok_in_limit": False,
            **periods,
            "byok_usage": 0,
            "is_free_tier": False,
            "is_management_key": label in emulator.config.management_keys,
            "is_provisioning_key": False,
            "rate_limit": {
                "interval": "1h",
                "note": "This field is deprecated and safe to ignore.",
                "requests": 1000,
            },
        }
    }


def credits(emulator: Emulator) -> dict[str, Any]:
    """GET /credits, for management keys."""
    books = emulator.books
    usage = {"total_usage": books.spent_nano / NANO}
    return {"data": {"total_credits": books.balance_nano / NANO, **usage}}


def generation(emulator: Emulator, generation_id: str) -> dict[str, Any] | None:
    """GET /generation?id=: None when it is not known, or not known yet."""
    found = emulator.generations.get(generation_id)
    if found is None or now() - found[2].time < emulator.config.generation_delay_s:
        return None
    head, completion, entry = found
    return {
        "data": {
            "id": head.id,
            "upstream_id": None,
            "model": head.model,
            "provider_name": head.provider,
            "streamed": False,
            "cancelled": not entry.delivered,
            "created_at": head.created,
            "finish_reason": completion.finish_reason,
            "native_finish_reason": completion.native_finish_reason,
            "tokens_prompt": entry.prompt_tokens,
            "tokens_completion": entry.completion_tokens,
            "native_tokens_prompt": entry.prompt_tokens,
            "native_tokens_completion": entry.completion_tokens,
            "native_tokens_reasoning": completion.reasoning_tokens,
            "native_tokens_cached": 0,
            "usage": entry.cost_nano / NANO,
            "total_cost": entry.cost_nano / NANO,
            "is_byok": False,
        }
    }
