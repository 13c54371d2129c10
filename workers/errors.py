"""What can go wrong with a request, by what the worker does about it.

    RequestError
    ├── TryLater             this prompt, later; costs an attempt unless `costs_attempt` is false
    │   ├── RateLimited          429; costs no attempt, lowers the endpoint's limit
    │   ├── InFlightBudget       402 of the in-flight budget; as a 429, but the account's
    │   ├── Overloaded           503, 529: costs an attempt, lowers the endpoint's limit
    │   ├── ServerFailed         3xx, 408, 409, 425, 500, 502, 504, 520–527, unknown codes
    │   ├── ProviderRefused      "Provider returned error" of 400, 401, 403, 404: it is the
    │   │                        provider's, and another one may accept
    │   ├── ConnectionLost       refused, reset, cut in the middle of the body
    │   ├── DeadlinePassed       no whole answer in time; it may be billed
    │   ├── EmptyBody            only keep-alives came
    │   ├── NotJson              an HTML page, a broken body
    │   ├── NoChoices            a 200 without an answer and without an error
    │   ├── Unfinished           finish_reason error, null or unknown
    │   └── WrongProvider        paid, and answered by an endpoint or model that was not asked for
    ├── DropPrompt           never: the prompt goes to the dead letters
    │   ├── BadRequest           400 context length, parameters; 422; tools that no endpoint takes
    │   ├── TooLarge             413; longer than the context of every allowed endpoint
    │   └── Moderated            403 moderation, guardrails; content policy, refusals
    └── StopFleet            nothing, until its cause is gone: the run pauses
        ├── OutOfCredits         402, 403 of a budget
        ├── KeyRefused           401, 403
        └── NoEndpoint           404, a model unknown: no allowed endpoint serves it. Where one
                                 endpoint was asked, only that one failed

The class docstring is what the user reads, with the response's own words after it. An error
is rebuilt from its `args`, by pickle and by Celery, which may have made text of them.
"""

from dataclasses import dataclass, field

from fleet.transitions import Verdict


@dataclass(frozen=True)
class Details:
    """What is known of a failed request besides its kind."""

    message: str = ""
    #: Wait asked for by the server, in seconds.
    retry_after_s: float | None = None
    #: What the response says it cost.
    cost_usd: float = 0.0
    #: The request may be billed though no answer came.
    may_be_billed: bool = False
    #: Provider named by the error, if any.
    provider: str = ""
    body: bytes = field(default=b"", repr=False)
    #: When a budget begins anew, in seconds since the epoch.
    resets_at: float | None = None


class RequestError(Exception):
    """The request failed."""

    costs_attempt = True
    #: What it says of the endpoint that was asked.
    verdict: Verdict = "failed"

    def __init__(self, details: Details | str = Details()) -> None:
        super().__init__(details)
        self.details = details if isinstance(details, Details) else Details(details)

    @classmethod
    def kind(cls) -> str:
        """The class's name as words: `rate limited`."""
        return "".join(f" {c.lower()}" if c.isupper() else c for c in cls.__name__).strip()

    def __str__(self) -> str:
        parts = [(self.__doc__ or "").split("\n")[0].rstrip(".")]
        if self.details.provider:
            parts.append(self.details.provider)
        if self.details.message:
            parts.append(self.details.message)
        return ": ".join(parts)


class TryLater(RequestError):
    """The request failed and may succeed later."""


class RateLimited(TryLater):
    """The provider is rate-limiting."""

    costs_attempt = False
    verdict = "throttled"


class InFlightBudget(TryLater):
    """Requests in flight exhaust the balance's in-flight budget."""

    costs_attempt = False
    verdict = "account"


class Overloaded(TryLater):
    """The provider is overloaded."""

    verdict = "overloaded"


class ServerFailed(TryLater):
    """The server failed."""


class ProviderRefused(TryLater):
    """A provider refused the request."""


class ConnectionLost(TryLater):
    """The connection was lost."""


class DeadlinePassed(TryLater):
    """No whole answer came before the deadline."""


class EmptyBody(TryLater):
    """The body ended after its keep-alives."""


class NotJson(TryLater):
    """The body is not JSON."""


class NoChoices(TryLater):
    """The response has neither an answer nor an error."""


class Unfinished(TryLater):
    """The answer was not finished."""


class WrongProvider(TryLater):
    """An endpoint that was not allowed answered."""


class DropPrompt(RequestError):
    """The prompt cannot be answered."""

    verdict = "neutral"


class BadRequest(DropPrompt):
    """The request is refused as it is."""


class TooLarge(DropPrompt):
    """The prompt is too large."""


class Moderated(DropPrompt):
    """The prompt was refused by moderation."""


class StopFleet(RequestError):
    """No request can succeed now."""

    verdict: Verdict = "neutral"


class OutOfCredits(StopFleet):
    """The credits are used up."""


class KeyRefused(StopFleet):
    """The API key is refused."""


class NoEndpoint(StopFleet):
    """No allowed endpoint serves the model."""

    verdict = "failed"
