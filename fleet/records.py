"""The records that travel through Redis, and the identity of a prompt.

The records that lie in files are in `fleet/schemas.py`, apart, so that a worker carries no
pyarrow.
"""

import hashlib
import json
from typing import Any, Literal

import msgspec

Message = dict[str, Any]


class Turn(msgspec.Struct, frozen=True):
    """A later turn of a conversation: what follows the answer before it."""

    prompt_id: str
    messages: list[Message]


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt as the feeder leaves it on the ledger."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    turn: int = 0
    followups: list[Turn] = []


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of one response; field `m` of a stream entry, as JSON.

    The response body stands beside it in field `r`, zlib-compressed bytes as received.
    """

    kind: Literal["completion", "reject"]
    prompt_id: str
    dataset: str
    messages: list[Message]
    attempts: int
    latency_s: float
    #: Seconds since the epoch.
    requested_at: float
    completed_at: float
    worker: str
    #: Tag of the endpoint that was asked, or `fleet.transitions.ANY_ENDPOINT`.
    endpoint: str = ""
    turn: int = 0
    tools: list[dict[str, Any]] | None = None
    suspect: str | None = None
    #: Why a `reject` is one.
    reason: str | None = None


def canonical_json(value: Any) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, non-ASCII kept."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def prompt_id(
    model: str,
    sampling: dict[str, Any],
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    parent: str | None = None,
) -> str:
    """Identity of a prompt: 32 hex digits of SHA-256 over all that shapes the answer.

    Args:
        sampling: `Sampling.identity()`.
        messages: what is sent; for a follow-up turn, what comes after the parent's answer.
        parent: `prompt_id` of the turn before, which stands for the whole history.
    """
    identity = {"model": model, "sampling": sampling, "messages": messages}
    if tools:
        identity["tools"] = tools
    if parent:
        identity["parent"] = parent
    text = canonical_json(identity).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:32]
