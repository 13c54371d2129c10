"""What a worker knows of a run, and the request and the check that follow from it.

In: `Ledger.config()`, a prompt, the endpoint that its claim names. Out: a request body, what its
response is held against, and whom and what it is booked on. Pure.
"""

from typing import Any

import msgspec

from fleet.records import Payload
from fleet.transitions import ANY_ENDPOINT, Endpoint, nano_usd
from workers.answers import Allowed, Answer

#: A price is sent rounded up here, so that no rounding of ours excludes its own endpoint.
PRICE_DIGITS = 6


class Job(msgspec.Struct, frozen=True):
    """`Ledger.config()`."""

    model: str
    base_url: str
    #: Every field of the request body but the messages, the tools and the endpoint.
    request: dict[str, Any]
    #: Display name of each allowed provider → the tag of its endpoint, or again its name where
    #: it has several. What answers under another name was not allowed.
    providers: dict[str, str]
    deadline_s: float
    max_attempts: int

    def body(self, payload: Payload, endpoint: Endpoint) -> bytes:
        """The request. One endpoint is asked, at no more than the price that is reserved for it."""
        body = {**self.request, "messages": payload.messages}
        if payload.tools:
            body["tools"] = payload.tools
        if endpoint.tag != ANY_ENDPOINT:
            price = {
                "prompt": _per_million(endpoint.prompt_nusd),
                "completion": _per_million(endpoint.completion_nusd),
            }
            only = {"only": [endpoint.tag], "allow_fallbacks": False, "max_price": price}
            body["provider"] = {**self.request["provider"], **only}
        return msgspec.json.encode(body)

    def allowed(self, endpoint: Endpoint) -> Allowed:
        """What the response is held against."""
        names = [endpoint.provider] if endpoint.tag != ANY_ENDPOINT else self.providers
        return Allowed(self.model, frozenset(name for name in names if name))

    def served_by(self, provider: str, endpoint: Endpoint) -> str:
        """On which endpoint a response is booked."""
        if endpoint.tag != ANY_ENDPOINT:
            return endpoint.tag
        return self.providers.get(provider, provider)


def cost_nusd(answer: Answer, endpoint: Endpoint, reserved_nusd: int) -> int:
    """What an answer cost. One that does not say is taken at its tokens' price; without their
    number, at what was held for it."""
    if answer.cost_usd is not None:
        return nano_usd(answer.cost_usd)
    if not answer.completion_tokens:
        return reserved_nusd
    prompt = answer.prompt_tokens * endpoint.prompt_nusd
    return round(prompt + answer.completion_tokens * endpoint.completion_nusd)


def _per_million(nusd: float) -> float:
    """US dollars per million tokens."""
    step = 10.0**-PRICE_DIGITS
    return round(nusd / 1000 + step, PRICE_DIGITS)
