"""Whether a request is let in, and what then becomes of it: an `Order`.

In: the key, the body. Out: the order (prompt, endpoint, fault, reservation), or
`Refused` with the reply. Steps: key, body, model, endpoint, balance. The order of the
checks is the service's: a bad key is told before a bad body, a lack of credits before
anything that a provider does.
"""

from __future__ import annotations

import time

from msgspec import Struct

from . import errors, fault_errors, faults
from .books import messages_key
from .chance import Dice, throw
from .completion import Prompt
from .config import Config, Endpoint, Fault
from .fault_kinds import ERRORS
from .request import BadRequest, ChatRequest, parse
from .routing import Preferences, Unroutable, route
from .state import Emulator
from .wire import Head, generation_id


class Order(Struct, frozen=True):
    """One request that was let in."""

    prompt: Prompt
    head: Head
    endpoint: Endpoint
    fault: Fault | None
    stream: bool
    #: Of the balance, what is set aside while the request is in flight.
    reserved_nano: int


class Refused(Exception):
    """The request is not let in."""

    def __init__(self, reply: errors.Reply) -> None:
        super().__init__(reply)
        self.reply = reply


def admit(emulator: Emulator, key: str, body: bytes) -> Order:
    """The order for this request; Refused otherwise."""
    check_key(emulator.config, key)
    try:
        request, parameters = parse(body)
    except BadRequest as error:
        raise Refused(error.reply) from error
    preferences = _preferences(request, _check_model(emulator.config, request.model))
    known_as = messages_key(request.messages)
    nth = emulator.nth(known_as)
    dice = throw(emulator.config.seed, known_as, nth)
    try:
        candidates = route(emulator.endpoints.values(), preferences, parameters, dice.route)
    except Unroutable as error:
        raise Refused(error.reply) from error
    endpoint, fault = _choose(emulator, candidates, known_as, nth)
    prompt = _prompt(request, endpoint, known_as, nth, dice)
    reserved = _reserve(emulator, prompt, endpoint)
    head = _head(emulator, endpoint, fault, candidates)
    return Order(prompt, head, endpoint, fault, bool(request.stream), reserved)


def check_key(config: Config, key: str) -> None:
    """Refused for a key that is missing or not known."""
    if not key:
        raise Refused(errors.UNAUTHORIZED)
    if config.api_keys and key not in config.api_keys + config.management_keys:
        raise Refused(errors.UNKNOWN_KEY)


def _check_model(config: Config, name: str) -> str:
    """The variant (`floor` of `author/slug:floor`); Refused for another model."""
    model, _, variant = name.partition(":")
    if model not in (config.model.id, config.model.canonical_slug):
        message = f"{name} is not a valid model ID"
        raise Refused(errors.refuse(400, message, outcome="unknown_model_400"))
    return variant


def _preferences(request: ChatRequest, variant: str) -> Preferences:
    if request.provider is not None:
        return request.provider
    return Preferences(sort={"floor": "price", "nitro": "throughput"}.get(variant))


def _choose(
    emulator: Emulator, candidates: list[Endpoint], key: str, nth: int
) -> tuple[Endpoint, Fault | None]:
    """The first candidate that does not fail, or the last with its fault.

    Only an error of one endpoint (a fault that names it) is answered by trying the next.
    """
    elapsed = time.monotonic() - emulator.faults_since
    fault = None
    for endpoint in candidates:
        seed = emulator.config.seed
        fault = faults.pick(emulator.faults, seed, key, nth, endpoint.tag, elapsed)
        if fault is None or not (fault.endpoint and fault.kind in ERRORS):
            return endpoint, fault
    return candidates[-1], fault


def _prompt(request: ChatRequest, endpoint: Endpoint, key: str, nth: int, dice: Dice) -> Prompt:
    supported = endpoint.supported_parameters
    logprobs = request.logprobs and "logprobs" in supported and not endpoint.honesty.drop_logprobs
    cap = endpoint.max_completion_tokens or endpoint.context_length
    served = endpoint.honesty.temperature_served or request.temperature
    return Prompt(
        messages=request.messages,
        messages_key=key,
        nth=nth,
        dice=dice,
        max_tokens=min(request.limit_tokens or cap, cap),
        temperature=1.0 if served is None else served,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=request.seed,
        stop=request.stops,
        top_logprobs=(request.top_logprobs or 0) if logprobs else None,
        tools=bool(request.tools),
        reasoning=request.thinks,
        latency_factor=endpoint.latency_factor,
    )


def _reserve(emulator: Emulator, prompt: Prompt, endpoint: Endpoint) -> int:
    """What the request may cost, set aside; Refused when the balance does not cover it."""
    books, config = emulator.books, emulator.config
    if not books.limited:
        return 0
    prompt_tokens, completion_tokens = emulator.backend.most_tokens(prompt)
    if config.check_max_tokens:
        completion_tokens = prompt.max_tokens
    price = endpoint.completion_nano
    nano = endpoint.prompt_nano * prompt_tokens + price * completion_tokens
    if books.remaining_nano < nano:
        affordable = (books.remaining_nano - endpoint.prompt_nano * prompt_tokens) // max(price, 1)
        if config.check_max_tokens and affordable > 0:
            raise Refused(fault_errors.afford(completion_tokens, affordable))
        raise Refused(errors.NO_CREDITS)
    if books.remaining_nano - books.reserved_nano < nano:
        raise Refused(fault_errors.in_flight(1.0) if config.in_flight_budget else errors.NO_CREDITS)
    books.reserved_nano += nano
    return nano


def _head(
    emulator: Emulator,
    endpoint: Endpoint,
    fault: Fault | None,
    candidates: list[Endpoint],
) -> Head:
    config, honesty = emulator.config, endpoint.honesty
    kind = fault.kind if fault else ""
    provider = honesty.wrong_provider or endpoint.provider_name
    if kind == "wrong_provider":
        others = [e for e in emulator.endpoints.values() if e not in candidates]
        provider = others[0].provider_name if others else "SomeoneElse"
    model = honesty.wrong_model or config.model.canonical_slug
    if kind == "wrong_model":
        model = f"{config.model.id}-turbo"
    return Head(generation_id(), int(time.time()), model, provider)
