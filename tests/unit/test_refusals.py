"""Error responses as OpenRouter sends them, each to what the worker makes of it.

The bodies are those of OpenRouter's documentation, its API description, recorded traffic and
public bug reports, written out as data.
"""

import json
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.backends.base import Backend
from celery.utils.serialization import get_pickleable_exception

from workers import errors
from workers.answers import Allowed, read_answer
from workers.errors import Details, RequestError

ALLOWED = Allowed("moonshotai/kimi-k2.5")
KEEP_ALIVE = b"\n         \n"
RAW_429 = (
    "google/gemini is temporarily rate-limited upstream. Please retry shortly, or add your own "
    "key to accumulate your rate limits: https://openrouter.ai/settings/integrations"
)
IN_FLIGHT = (
    "This request would exceed your available credits given your current in-flight requests. "
    "Retry after in-flight requests settle, or add credits."
)
AFFORD = (
    "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, "
    "but can only afford 30104. To increase, visit https://openrouter.ai/settings/credits and "
    "upgrade to a paid account"
)
CUT = {
    "message": {"role": "assistant", "content": "partial output..."},
    "finish_reason": "error",
    "error": {
        "code": 502,
        "message": "Provider disconnected mid-stream",
        "metadata": {"error_type": "provider_unavailable"},
    },
}
NULLS = {"id": None, "choices": None, "model": None, "object": None}


class Case(NamedTuple):
    """A response and what it is."""

    status: int
    body: Any
    kind: type[RequestError]
    retry_after_s: float | None = None
    headers: Mapping[str, str] = {}
    provider: str = ""
    cost_usd: float = 0.0
    may_be_billed: bool = False


def body_error(code: Any, message: str, **metadata: Any) -> dict[str, Any]:
    error = {"code": code, "message": message}
    return {"error": error | ({"metadata": metadata} if metadata else {})}


def unavailable(status: int, code: str, retryable: bool, **more: Any) -> dict[str, Any]:
    """The shape of the documentation: no `error.code`."""
    availability = {"code": code, "retryable": retryable, "requested_models": ["a/b"], **more}
    error = {"message": code, "error_type": "x", "http_status": status}
    return {"error": error | {"availability": availability}}


CASES = {
    # The literal examples of the API description.
    "401": Case(401, body_error(401, "Missing Authentication header"), errors.KeyRefused),
    "402 no credits": Case(
        402,
        body_error(402, "Insufficient credits. Add more using https://openrouter.ai/credits"),
        errors.OutOfCredits,
    ),
    "404": Case(404, body_error(404, "Resource not found"), errors.NoEndpoint),
    "408": Case(
        408, body_error(408, "Operation timed out. Please try again later."), errors.ServerFailed
    ),
    "409": Case(409, body_error(409, "Conflict"), errors.ServerFailed),
    "413": Case(413, body_error(413, "Payload too large"), errors.TooLarge),
    "422": Case(422, body_error(422, "Unprocessable"), errors.BadRequest),
    "500": Case(500, body_error(500, "Internal Server Error"), errors.ServerFailed),
    "502": Case(502, body_error(502, "Provider returned error"), errors.ServerFailed),
    "503": Case(503, body_error(503, "Service temporarily unavailable"), errors.Overloaded),
    "504": Case(504, body_error(504, "Gateway timeout"), errors.ServerFailed),
    "524": Case(
        524, body_error(524, "Request timed out. Please try again later."), errors.ServerFailed
    ),
    "529": Case(529, body_error(529, "Provider returned error"), errors.Overloaded),
    # 429 in its variants.
    "429 recorded": Case(
        429,
        body_error(429, "Provider returned error", raw=RAW_429, provider_name="Google")
        | {"user_id": "user_x"},
        errors.RateLimited,
        provider="Google",
    ),
    "429 with the header": Case(
        429, body_error(429, "slow down"), errors.RateLimited, 7, {"Retry-After": "7"}
    ),
    "429 with metadata.headers": Case(
        429,
        body_error(
            429, "Provider returned error", headers={"Retry-After": "17"}, provider_name="Chutes"
        ),
        errors.RateLimited,
        17,
        provider="Chutes",
    ),
    "429 with retry_after_seconds": Case(
        429,
        body_error(
            429,
            "Provider returned error",
            retry_after_seconds=17.5,
            limit_source="upstream_provider_shared_pool",
            previous_errors=[{"provider": "Chutes", "code": 429, "status": 429}],
        ),
        errors.RateLimited,
        17.5,
    ),
    "429 newer docs": Case(
        429,
        body_error(429, "x", error_type="rate_limit_exceeded", provider_code="rate_limited"),
        errors.RateLimited,
    ),
    "429 of the free quota": Case(
        429,
        body_error(
            429,
            "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model "
            "requests per day",
            headers={"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0"},
            provider_name=None,
        ),
        errors.RateLimited,
    ),
    # 402 and 403 that concern money.
    "402 max_tokens": Case(402, body_error(402, AFFORD, provider_name=None), errors.OutOfCredits),
    "402 prompt tokens": Case(
        402,
        body_error(402, "Prompt tokens limit exceeded: 230799 > 91442. To increase, ..."),
        errors.OutOfCredits,
    ),
    "402 in flight": Case(
        402,
        body_error(
            402,
            IN_FLIGHT,
            reason="in_flight_budget_exhausted",
            limit_source="openrouter_in_flight_budget",
        ),
        errors.InFlightBudget,
        3,
        {"Retry-After": "3"},
    ),
    "402 weight": Case(
        402,
        body_error(
            402, IN_FLIGHT, reason="weight_exceeds_budget", limit_source="openrouter_credits"
        ),
        errors.OutOfCredits,
    ),
    "402 of the key": Case(
        402, body_error(402, "x", limit_source="openrouter_key_limit"), errors.OutOfCredits
    ),
    "402 as a bare page": Case(402, b"<html>pay</html>", errors.OutOfCredits),
    "403 guardrail budget": Case(
        403,
        body_error(403, "x", limit_source="openrouter_guardrail_budget", limit_usd=5),
        errors.OutOfCredits,
    ),
    "403 workspace budget": Case(
        403, body_error(403, "x", reason="openrouter_workspace_budget"), errors.OutOfCredits
    ),
    "403 key limit": Case(403, body_error(403, "x", error_type="key_limit"), errors.OutOfCredits),
    "403 key limit in words": Case(
        403, body_error(403, "Key limit exceeded (total limit)."), errors.OutOfCredits
    ),
    # 403 that concerns the prompt, and the key.
    "403 moderation": Case(
        403,
        body_error(
            403,
            "Your input was flagged",
            reasons=["violence"],
            flagged_input="...",
            provider_name="OpenInference",
            model_slug="a/b",
        ),
        errors.Moderated,
        provider="OpenInference",
    ),
    "403 moderation without reasons": Case(
        403, body_error(403, "flagged", reasons=[], flagged_input="..."), errors.Moderated
    ),
    "403 guardrail": Case(403, body_error(403, "x", patterns=["card"]), errors.Moderated),
    "400 content policy": Case(
        400, body_error(400, "x", error_type="content_policy_violation"), errors.Moderated
    ),
    "403 key": Case(403, body_error(403, "Only management keys can do this"), errors.KeyRefused),
    # 400.
    "400 context": Case(
        400,
        body_error(400, "This endpoint's maximum context length is 262144 tokens."),
        errors.BadRequest,
    ),
    "400 of a provider": Case(
        400,
        body_error(400, "Provider returned error", raw="boom", provider_name="Together"),
        errors.ProviderRefused,
        provider="Together",
    ),
    "400 context by a provider": Case(
        400,
        body_error(400, "Provider returned error", error_type="context_length_exceeded"),
        errors.BadRequest,
    ),
    "400 model": Case(
        400, body_error(400, "moonshotai/kimi-k9 is not a valid model ID"), errors.NoEndpoint
    ),
    "404 of a provider": Case(
        404,
        body_error(404, "Provider returned error", raw="no such model", provider_name="Nebius"),
        errors.ProviderRefused,
        provider="Nebius",
    ),
    "401 of a provider": Case(
        401,
        body_error(401, "Provider returned error", raw="invalid key", provider_name="Nebius"),
        errors.ProviderRefused,
        provider="Nebius",
    ),
    "404 tools": Case(
        404, body_error(404, "No endpoints found that support tool use."), errors.BadRequest
    ),
    "404 allowed providers": Case(
        404,
        body_error(404, "No allowed providers are available for the selected model."),
        errors.NoEndpoint,
    ),
    # `error.availability`.
    "model_not_found": Case(400, unavailable(400, "model_not_found", False), errors.NoEndpoint),
    "wrong_endpoint": Case(400, unavailable(400, "wrong_endpoint", False), errors.NoEndpoint),
    "no_endpoints": Case(404, unavailable(404, "no_endpoints", False), errors.NoEndpoint),
    "model_deprecated": Case(404, unavailable(404, "model_deprecated", False), errors.NoEndpoint),
    "region_restricted": Case(403, unavailable(403, "region_restricted", False), errors.NoEndpoint),
    "privacy_restricted": Case(
        404, unavailable(404, "privacy_restricted", False), errors.NoEndpoint
    ),
    "free_variant_ended": Case(
        404, unavailable(404, "free_variant_ended", False), errors.NoEndpoint
    ),
    "constraint_filtered": Case(
        404,
        unavailable(404, "constraint_filtered", False, excluded_by=["allowed_providers"]),
        errors.NoEndpoint,
    ),
    "constraint_filtered by length": Case(
        404,
        unavailable(404, "constraint_filtered", False, excluded_by=["context_length"]),
        errors.TooLarge,
    ),
    "constraint_filtered by tools": Case(
        404,
        unavailable(404, "constraint_filtered", False, constraint={"field": "tools"}),
        errors.BadRequest,
    ),
    "capacity_exhausted": Case(
        429, unavailable(429, "capacity_exhausted", True, retry_after=9), errors.RateLimited, 9
    ),
    "temporarily_unavailable": Case(
        503,
        unavailable(503, "temporarily_unavailable", True, retry_after=4),
        errors.Overloaded,
        4,
    ),
    "retryable 404": Case(404, unavailable(404, "new_code", True), errors.Overloaded),
    # Errors in a 200.
    "200 with nulls and 429": Case(
        200,
        NULLS
        | body_error(
            429, "Provider returned error", raw="Too Many Requests", provider_name="Hyperbolic"
        ),
        errors.RateLimited,
        provider="Hyperbolic",
    ),
    "200 banned by Cloudflare": Case(
        200,
        body_error(429, "Provider returned error", raw="error code: 1015"),
        errors.RateLimited,
        60,
    ),
    "200 flagged without choices": Case(
        200, body_error(502, "The request was flagged"), errors.ServerFailed
    ),
    "200 choices empty and an error": Case(
        200, {"choices": []} | body_error(500, "x"), errors.ServerFailed
    ),
    "200 partial answer and an error": Case(
        200,
        {
            "provider": "Minimax",
            "error": {"code": 400, "message": "Token limit reached"},
            "choices": [{"message": {"content": "half"}, "finish_reason": None}],
            "usage": {"cost": 0.01},
        },
        errors.BadRequest,
        provider="Minimax",
        cost_usd=0.01,
    ),
    "200 code is a number in text": Case(200, body_error("429", "x"), errors.RateLimited),
    "200 code is a word": Case(200, body_error("server_error", "x"), errors.ServerFailed),
    "200 code is a known word": Case(
        200, body_error("rate_limit_exceeded", "x"), errors.RateLimited
    ),
    "200 code is missing, the type is not": Case(
        200,
        {"error": {"message": "x", "metadata": {"error_type": "provider_overloaded"}}},
        errors.Overloaded,
    ),
    "200 error is text": Case(200, {"error": "upstream died"}, errors.ServerFailed),
    "200 error is a list": Case(200, {"error": ["x"]}, errors.ServerFailed),
    "200 error beside a nested completion": Case(
        200,
        NULLS | body_error(429, "x") | {"provider": {"choices": [], "usage": {"cost": 0.02}}},
        errors.RateLimited,
        cost_usd=0.02,
    ),
    "200 error in a nested completion": Case(
        200, NULLS | {"provider": body_error(503, "x")}, errors.Overloaded
    ),
    "200 cut in the middle": Case(200, {"choices": [CUT]}, errors.Unfinished),
    # Without an error object.
    "502 page": Case(502, b"<!DOCTYPE html><h1>Bad gateway</h1>", errors.ServerFailed),
    "524 page": Case(524, b"<!DOCTYPE html>", errors.ServerFailed, may_be_billed=True),
    "504 page": Case(504, b"<html>", errors.ServerFailed, may_be_billed=True),
    "503 page": Case(503, b"<!DOCTYPE html>", errors.Overloaded, 5, {"Retry-After": "5"}),
    "429 page": Case(429, b"<!DOCTYPE html>", errors.RateLimited),
    "403 page of a captcha": Case(403, b"<!DOCTYPE html>Just a moment", errors.ServerFailed),
    "403 ban in text": Case(403, b"error code: 1015", errors.RateLimited, 60),
    "404 page": Case(404, b"<html>nginx</html>", errors.ServerFailed),
    "404 text": Case(404, b"404 page not found", errors.NoEndpoint),
    "401 text": Case(401, b"Unauthorized", errors.KeyRefused),
    "413 page": Case(413, b"<html>too large</html>", errors.TooLarge),
    "500 empty": Case(500, b"", errors.ServerFailed),
    "302": Case(302, b"", errors.ServerFailed, None, {"Location": "https://else.where/"}),
    "204": Case(204, b"", errors.ServerFailed),
    "503 with an array": Case(503, [1], errors.Overloaded),
    "500 with text": Case(500, "boom", errors.ServerFailed),
    "500 with a number": Case(500, 5, errors.ServerFailed),
    "500 with bad UTF-8": Case(500, b"\xff\xfe", errors.ServerFailed),
}


def refused(case: Case) -> RequestError:
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    with pytest.raises(RequestError) as caught:
        read_answer(case.status, case.headers, KEEP_ALIVE * 3 + body, ALLOWED)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_told_by_its_wire_form(name: str) -> None:
    """Each known error response gives its class, wait, cost, provider and billing."""
    case = CASES[name]
    error = refused(case)
    assert type(error) is case.kind, error
    details = error.details
    seen = (details.retry_after_s, details.provider, details.cost_usd, details.may_be_billed)
    assert seen == (case.retry_after_s, case.provider, case.cost_usd, case.may_be_billed)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"Retry-After": "0"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "999999"}, 3600.0),
        (
            {
                "Retry-After": "Tue, 01 Dec 2026 10:00:30 GMT",
                "Date": "Tue, 01 Dec 2026 10:00:00 GMT",
            },
            30.0,
        ),
        ({"Retry-After": "Tue, 01 Dec 2026 10:00:30 GMT"}, None),
    ],
)
def test_a_wait_is_believed_only_if_it_is_one(
    headers: dict[str, str], seconds: float | None
) -> None:
    """A hint of 0, of no number, or in the past counts as none; an endless one is capped."""
    case = Case(429, body_error(429, "x"), errors.RateLimited, headers=headers)
    assert refused(case).details.retry_after_s == seconds


def test_the_first_place_with_a_hint_wins_over_a_useless_one() -> None:
    """A useless header does not hide the hint in the body."""
    body = body_error(429, "x", headers={"retry-after": "8"})
    case = Case(429, body, errors.RateLimited, headers={"Retry-After": "0"})
    assert refused(case).details.retry_after_s == 8


def test_the_message_keeps_what_the_provider_said() -> None:
    """`metadata.raw` and the provider's name alone say what happened: the user sees both."""
    text = str(refused(CASES["400 of a provider"]))
    assert text == "A provider refused the request: Together: Provider returned error: boom"


def test_half_a_character_in_a_message_can_be_stored() -> None:
    """Whatever a message holds, its text fits UTF-8, for Redis and the logs."""
    error = refused(Case(500, body_error(500, "\ud83d", provider_name="\ud83d"), RequestError))
    assert str(error).encode()


LEAVES = [
    kind
    for family in (errors.TryLater, errors.DropPrompt, errors.StopFleet)
    for kind in family.__subclasses__()
]
#: Errors that no response is, and errors that are in `test_answers.py`.
ELSEWHERE = {
    errors.ConnectionLost,
    errors.DeadlinePassed,
    errors.EmptyBody,
    errors.NotJson,
    errors.NoChoices,
    errors.WrongProvider,
}


def test_every_error_is_reached_from_the_wire() -> None:
    """No class stands in the tree without a response that gives it."""
    assert set(LEAVES) - ELSEWHERE == {case.kind for case in CASES.values()}


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_says_its_reaction(kind: type[RequestError]) -> None:
    """Each class is in the tree of the module's docstring and has a sentence for the user."""
    assert f" {kind.__name__} " in (errors.__doc__ or "")
    assert kind.__doc__
    assert kind.__doc__.endswith(".")
    assert kind.kind() == kind.kind().lower()
    costs = not issubclass(kind, errors.RateLimited | errors.InFlightBudget)
    assert kind.costs_attempt is costs
    told = {
        errors.RateLimited: "throttled",
        errors.InFlightBudget: "account",
        errors.Overloaded: "overloaded",
        errors.NoEndpoint: "failed",
    }
    expected = "failed" if issubclass(kind, errors.TryLater) else "neutral"
    assert kind.verdict == told.get(kind, expected)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_survives_pickling_and_celery(kind: type[RequestError]) -> None:
    """An error that leaves its process is the same one, or at least of its class and readable."""
    error = kind(Details("said", 2.0, 0.5, may_be_billed=True, provider="P", body=b"b"))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.details, str(again)) == (kind, error.details, str(error))
    assert get_pickleable_exception(error) is error
    with pytest.raises(kind) as caught:
        raise error
    pickle.dumps(ExceptionInfo((kind, error, caught.tb)))
    backend = Backend(app=Celery("test", set_as_current=False))
    rebuilt = backend.exception_to_python(backend.prepare_exception(error, serializer="json"))
    assert type(rebuilt) is kind
    assert "said" in str(rebuilt)


def test_an_error_shows_no_body() -> None:
    """A response's body may be long and is the user's text: `repr` leaves it out."""
    assert "private" not in repr(errors.NotJson(Details("m", body=b"private")))
