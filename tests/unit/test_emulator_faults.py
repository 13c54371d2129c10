"""The emulator's faults: deterministic, at their rate, each of its kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulator import faults
from emulator.books import messages_key
from emulator.completion import Completion
from emulator.config import Fault
from emulator.fault_bodies import body_of
from emulator.fault_errors import Scene, reply_to
from emulator.fault_kinds import ALTERED, BODIES, CUTS, ERRORS, KINDS
from emulator.fault_text import altered
from emulator.wire import Head

KEYS = [messages_key([{"role": "user", "content": str(number)}]) for number in range(2000)]


def struck(fault: Fault, seed: int = 0, nth: int = 0, endpoint: str = "") -> list[bool]:
    return [
        faults.pick((fault,), seed, key, nth, endpoint, elapsed_s=0) is not None for key in KEYS
    ]


def test_a_fault_strikes_the_same_requests_every_time() -> None:
    """The decision depends on seed, messages and count alone, never on order of arrival."""
    fault = Fault(kind="server_500", rate=0.1)
    assert struck(fault) == struck(fault)
    assert struck(fault) != struck(fault, seed=1)
    assert struck(fault) != struck(fault, nth=1)


def test_a_fault_strikes_at_its_rate() -> None:
    """2,000 requests at a rate of 0.1 are struck 200 times, give or take."""
    assert 150 < sum(struck(Fault(kind="server_500", rate=0.1))) < 250
    assert sum(struck(Fault(kind="server_500", rate=0))) == 0
    assert all(struck(Fault(kind="server_500", rate=1)))


def test_a_fault_keeps_to_its_endpoint_attempts_and_window() -> None:
    """Each limit of a fault lets everything else through."""

    def hits(nth: int = 0, **limits: Any) -> bool:
        fault = Fault(kind="server_500", **limits)
        return faults.pick((fault,), 0, KEYS[0], nth, "a", elapsed_s=5) is not None

    assert hits(nth=1, attempts=2)
    assert hits(from_s=5, until_s=6)
    bound = Fault(kind="server_500", endpoint="b")
    assert faults.pick((bound,), 0, KEYS[0], 0, "b", 0) is bound
    assert faults.pick((bound,), 0, KEYS[0], 0, "a", 0) is None
    assert not hits(nth=2, attempts=2)
    assert not hits(from_s=6)
    assert not hits(until_s=5)


def test_the_first_fault_that_fires_acts() -> None:
    """Faults are tried in the order in which they are listed."""
    pair = (Fault(kind="server_500"), Fault(kind="provider_502"))
    assert faults.pick(pair, 0, KEYS[0], 0, "", 0) is pair[0]


SCENE = Scene("Chutes", "m", 1000, 64, 3)


@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_an_error_fault_has_the_status_in_its_name(kind: str) -> None:
    """Every error kind answers with its status, and with JSON unless it is a page."""
    reply = reply_to(kind, SCENE)
    assert str(reply.status) in kind
    assert reply.outcome == kind
    if kind.startswith("html_"):
        assert reply.body.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    else:
        assert json.loads(reply.body)["error"]["message"]


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_a_body_fault_is_no_usable_completion(kind: str) -> None:
    """No body kind has choices at the top level that a client could take for an answer."""
    body, content_type = body_of(kind, Head("gen-1-a", 1, "m", "p"))
    if content_type == b"application/json" and body:
        assert not json.loads(body).get("choices")


def test_every_kind_is_in_one_group_only() -> None:
    """The four groups share no name, so a kind has one meaning."""
    assert len(KINDS) == len(ERRORS) + len(BODIES) + len(CUTS) + len(ALTERED)


@pytest.mark.parametrize("kind", sorted(set(ALTERED) - {"wrong_provider", "wrong_model"}))
def test_an_altered_completion_differs(kind: str) -> None:
    """Each alteration leaves a mark, but for the slow drip, which is in the delivery."""
    completion = Completion(
        content=" a b c d", reasoning=" e f", prompt_tokens=5, completion_tokens=8
    )
    assert (altered(kind, completion) == completion) == (kind == "slow_drip")
