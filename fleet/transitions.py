"""What the ledger's transitions take and give: frozen records, without Redis.

Money is in nano-USD.
"""

from dataclasses import dataclass
from typing import Literal

NANO = 1_000_000_000

#: What an outcome says of its endpoint (`lua/_endpoints.lua`): `throttled`, it is full;
#: `overloaded`, the same, and the attempt failed; `failed`; `account`, a limit of the account and
#: not the endpoint's; `neutral`, nothing.
Verdict = Literal["throttled", "overloaded", "failed", "account", "neutral"]
#: The tag under which OpenRouter chooses the endpoint.
ANY_ENDPOINT = "openrouter"


def nano_usd(usd: float | str) -> int:
    """US dollars as whole nano-USD, rounded to the nearest."""
    return round(float(usd) * NANO)


@dataclass(frozen=True)
class Fed:
    """A prompt to put on the ledger."""

    prompt_id: str
    #: JSON of a `fleet.records.Payload`.
    payload: bytes
    #: Row of the frozen dataset after it and its follow-ups.
    row_after: int


@dataclass(frozen=True)
class Route:
    """An endpoint that requests may go to, as the feeder tells the ledger."""

    #: The endpoint's tag, or `ANY_ENDPOINT`.
    tag: str
    #: Display name, as responses bear it; "" for any.
    provider: str
    #: Highest price of a token, and of a request.
    prompt_nusd: float
    completion_nusd: float
    request_nusd: float = 0.0
    #: Its part of the requests, against the others' (`spread`).
    weight: float = 1.0
    #: Requests in flight that it begins with.
    start: int = 1


@dataclass(frozen=True)
class Endpoint:
    """Where a claimed prompt's request goes."""

    tag: str
    provider: str
    prompt_nusd: float
    completion_nusd: float


@dataclass(frozen=True)
class Claim:
    """A worker's lease on a prompt."""

    prompt_id: str
    fence: str
    dataset: str
    #: JSON object: messages, tools, turn, followups.
    payload: bytes
    #: Failed attempts before this one.
    attempts: int
    #: What is held for this request: what an answer is expected to cost.
    reserved_nusd: int
    endpoint: Endpoint
    #: Attempts under this claim before this one.
    hop: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a prompt may not be claimed, or sent elsewhere, now."""

    reason: str
    retry_after_s: float


@dataclass(frozen=True)
class Failure:
    """A request that failed, and what is known of its money."""

    #: Of the error, as it is counted: `rate limited`.
    kind: str
    message: str = ""
    verdict: Verdict = "neutral"
    retry_after_s: float = 0.0
    #: The endpoint that failed, where that is not the one asked; "" when it is not known.
    endpoint: str = ""
    #: What the response says it cost.
    spent_nusd: int = 0
    #: No answer came, and the request may be billed.
    presumed: bool = False
    #: Event and body of a response that is kept though it is refused.
    reject: tuple[bytes, bytes] = (b"", b"")


@dataclass(frozen=True)
class Purchase:
    """A completion as billed."""

    spent_nusd: int
    prompt_tokens: int
    completion_tokens: int
    truncated: bool
    #: Tag of the endpoint that served it; its display name where that is all that is known.
    endpoint: str
    latency_s: float = 0.0


@dataclass(frozen=True)
class Pace:
    """The fleet's pace as one worker sees it."""

    share: int
    limit: int
    workers: int
    #: Every endpoint's circuit is open: nothing succeeds.
    breaker_open: bool
