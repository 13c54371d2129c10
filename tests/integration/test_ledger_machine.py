"""The ledger under any order of calls: what must hold, holds after each of them.

Hypothesis draws calls of feeders, workers and users, late and repeated ones among them; a
claim with a lease of 0 is one whose worker went silent.
"""

import json
import uuid
from collections import Counter
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet.ledger import Ledger
from fleet.transitions import Claim, Failure, Fed, Purchase, Route, Verdict

PROMPTS = ("a", "b", "c", "d")
DATASETS = ("D", "E")
PAYLOAD = b'{"messages":[]}'
ROUTES = [Route("p/int4", "P", 100, 1000, start=8), Route("q/int4", "Q", 100, 1500, start=8)]
#: Of a claim's text, as `lua/_common.lua` has them.
FIELDS = "fence dataset reserved most since nonce worker tag sent hop".split()


def dataset_of(prompt_id: str) -> str:
    return DATASETS[PROMPTS.index(prompt_id[0]) % 2]


def event(prompt_id: str, kind: str = "completion") -> bytes:
    return json.dumps({"kind": kind, "prompt_id": prompt_id}).encode()


class Machine(RuleBasedStateMachine):
    """Calls of the ledger, and what they should add up to."""

    client: redis.Redis
    numbers: dict[str, int | float]

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.client, f"machine-{uuid.uuid4().hex[:12]}")
        #: Claims whose worker has made no transition yet, and the calls that were made.
        self.held: list[Claim] = []
        self.settled: list[tuple[str, Claim, Failure]] = []
        #: Money reported, and presumed by the workers themselves, in nano-USD.
        self.spent = 0
        self.presumed = 0
        #: What is on the ledger.
        self.seen: dict[str, Any] = {}

    def teardown(self) -> None:
        self.client.delete(*self.ledger.keys.all)

    @initialize()
    def open(self) -> None:
        self.ledger.open({}, self.numbers)
        self.ledger.set_routes(ROUTES)
        for name in DATASETS:
            self.ledger.open_dataset(name, prompts=9, budget_tokens=0, prior_tokens=100)
        for prompt_id in PROMPTS[:2]:
            self.feed(prompt_id)
        self._read()

    # The feeder's and the user's calls

    @rule(prompt_id=st.sampled_from(PROMPTS))
    def feed(self, prompt_id: str) -> None:
        self.ledger.feed(dataset_of(prompt_id), [Fed(prompt_id, PAYLOAD, 0)], None)

    @rule(most=st.integers(0, 4), lost=st.booleans())
    def resend(self, most: int, lost: bool) -> None:
        if lost:
            for prompt_id in self.client.zrange(self.ledger.keys.queued, 0, -1):
                self.client.zadd(self.ledger.keys.queued, {prompt_id: 1})
        assert len(self.ledger.resend(most, 60 if lost else 0, most)) <= 2 * most

    @rule(what=st.sampled_from(["pause", "resume", "resume", "resume"]))
    def pause_or_resume(self, what: str) -> None:
        if what == "pause":
            self.ledger.pause("kind", "reason")
        else:
            self.ledger.resume()

    @rule(dataset=st.sampled_from(DATASETS), chance=st.integers(0, 9))
    def cancel(self, dataset: str, chance: int) -> None:
        if chance == 5:
            self.ledger.cancel(dataset)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        failures = sorted(self.ledger.failures(), key=lambda f: f[0])
        chosen = [f for f in failures if data.draw(st.booleans())]
        assert self.ledger.retry(chosen) == len(chosen)

    # The workers' calls

    @precondition(lambda self: self.seen["prompts"])
    @rule(data=st.data(), lease_s=st.sampled_from([0.0, 0.0, 600.0]))
    def claim(self, data: st.DataObject, lease_s: float) -> None:
        prompt_id = data.draw(st.sampled_from(sorted(self.seen["prompts"])))
        self._claim(prompt_id, lease_s)

    @precondition(lambda self: self.seen["claims"])
    @rule(data=st.data())
    def claim_what_may_have_expired(self, data: st.DataObject) -> None:
        self._claim(data.draw(st.sampled_from(sorted(self.seen["claims"]))), 0)

    @rule(prompt_id=st.sampled_from([*PROMPTS, *(p + "2" for p in PROMPTS)]))
    def claim_by_a_stray_message(self, prompt_id: str) -> None:
        self._claim(prompt_id, 600)

    def _claim(self, prompt_id: str, lease_s: float) -> None:
        got = self.ledger.claim(prompt_id, "worker", lease_s)
        if isinstance(got, Claim):
            self.held.append(got)

    @rule(prompt_id=st.sampled_from(PROMPTS))
    def yield_(self, prompt_id: str) -> None:
        self.ledger.yield_(prompt_id, 0)

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        what=st.sampled_from(["commit", "commit", "release", "fail"]),
        spent=st.integers(0, 2),
        presumed=st.booleans(),
        verdict=st.sampled_from(["throttled", "failed", "neutral"]),
    )
    def settle(
        self, data: st.DataObject, what: str, spent: int, presumed: bool, verdict: Verdict
    ) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        reject = (event(held.prompt_id, "reject"), b"")
        failure = Failure("k", "r", verdict, spent_nusd=spent, presumed=presumed, reject=reject)
        if what != "commit" and presumed and (at := self._claim_of(held)):
            # One that has expired is presumed spent already.
            self.presumed += int(at[FIELDS.index("reserved")])
        self._call(what, held, failure)
        self.settled.append((what, held, failure))
        self.spent += spent

    @precondition(lambda self: self.held)
    @rule(data=st.data(), now=st.booleans(), told=st.booleans(), twice=st.booleans())
    def reroute(self, data: st.DataObject, now: bool, told: bool, twice: bool) -> None:
        """The next attempt of a claim; its reply may get lost."""
        place = data.draw(st.integers(0, len(self.held) - 1))
        failure = Failure("k", "r", "throttled") if told else None
        for _ in range(1 + twice):
            got = self.ledger.reroute(self.held[place], failure, 600, now=now)
        if isinstance(got, Claim):
            self.held[place] = got

    def _claim_of(self, held: Claim) -> list[str] | None:
        """The claim as it lies on the ledger, while it is still this one."""
        value = self.client.hget(self.ledger.keys.claim, held.prompt_id)
        parts = value.decode().split("|") if value else [""]
        return parts if parts[0] == held.fence else None

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The reply was lost with the connection: the worker calls again, and nothing changes."""
        what, held, failure = data.draw(st.sampled_from(self.settled))
        before = self._dump()
        self._call(what, held, failure)
        assert self._dump() == before

    def _call(self, what: str, held: Claim, failure: Failure) -> None:
        first_turn = len(held.prompt_id) == 1
        followup = held.prompt_id + "2"
        if what == "commit":
            purchase = Purchase(failure.spent_nusd, 1, 10, False, held.endpoint.tag)
            self.ledger.commit(
                held,
                event(held.prompt_id),
                b"",
                purchase,
                followup=(followup, PAYLOAD) if first_turn else None,
            )
        elif what == "release":
            self.ledger.release(held, 0, failure, failed_attempts=1)
        else:
            self.ledger.fail(held, failure, 1, [followup] if first_turn else [])

    # What must hold

    @invariant()
    def all_holds(self) -> None:
        self._read()
        self._every_live_prompt_is_in_exactly_one_place()
        self._what_is_in_flight_is_what_is_claimed()
        self._all_money_is_counted_once()
        self._every_done_prompt_has_one_completion()
        self._the_counters_say_what_is_there()

    def _every_live_prompt_is_in_exactly_one_place(self) -> None:
        places = Counter([*self.seen["waiting"], *self.seen["queued"], *self.seen["claims"]])
        live, done = set(self.seen["prompts"]), set(self.seen["done"])
        failed = set(self.seen["failures"])
        assert all(places[prompt_id] == 1 for prompt_id in live), places
        # A prompt that a late answer completed may be claimed still, by one who will see.
        stale = set(places) - live
        assert stale <= done
        assert stale <= set(self.seen["claims"])
        assert not live & done
        assert not failed & (live | done)

    def _what_is_in_flight_is_what_is_claimed(self) -> None:
        claims = self.seen["claim"]
        assert set(claims) == set(self.seen["claims"])
        parts = [value.split("|") for value in claims.values()]
        tags = Counter(part[FIELDS.index("tag")] for part in parts)
        for route in ROUTES:
            assert int(self.seen["endpoints"].get(f"{route.tag}|in_flight", 0)) == tags[route.tag]
        assert self._number("in_flight") == len(parts)
        by_dataset = Counter(part[1] for part in parts)
        for dataset in DATASETS:
            assert self._count("in_flight", dataset) == by_dataset[dataset]
            since = sum(int(part[4]) for part in parts if part[1] == dataset)
            assert self._count("claimed", dataset) == since
        assert self._number("reserved") == sum(int(part[2]) for part in parts)
        assert self._number("reserved_most") == sum(int(part[3]) for part in parts)

    def _all_money_is_counted_once(self) -> None:
        presumed = sum(int(value.split("|")[0]) for value in self.seen["expired"].values())
        assert self._number("spent") == self.spent
        assert self._number("unconfirmed_most") >= self._number("unconfirmed")
        assert self._number("unconfirmed") == presumed + self.presumed

    def _every_done_prompt_has_one_completion(self) -> None:
        events = [json.loads(fields[b"m"]) for _, fields in self.seen["completions"]]
        completed = [e["prompt_id"] for e in events if e["kind"] == "completion"]
        assert sorted(completed) == sorted(self.seen["done"])

    def _the_counters_say_what_is_there(self) -> None:
        for name, key in (("done", "done"), ("failed", "failures")):
            there = Counter(dataset_of(prompt_id) for prompt_id in self.seen[key])
            for dataset in DATASETS:
                assert self._count(name, dataset) == there[dataset]

    def _read(self) -> None:
        """All of the ledger, at one moment."""
        keys = self.ledger.keys
        hashes = ("run", "datasets", "prompts", "claim", "expired", "done", "failures", "endpoints")
        zsets = ("waiting", "queued", "claims")
        with self.client.pipeline() as pipe:
            for name in hashes:
                pipe.hgetall(getattr(keys, name))
            for name in zsets:
                pipe.zrange(getattr(keys, name), 0, -1)
            pipe.xrange(keys.completions)
            replies = pipe.execute()
        for name, reply in zip(hashes, replies, strict=False):
            self.seen[name] = {k.decode(): v.decode() for k, v in reply.items()}
        for name, reply in zip(zsets, replies[len(hashes) :], strict=False):
            self.seen[name] = [member.decode() for member in reply]
        self.seen["completions"] = replies[-1]

    def _number(self, name: str) -> int:
        return int(self.seen["run"].get(name, 0))

    def _count(self, name: str, dataset: str) -> int:
        return int(self.seen["datasets"].get(f"{dataset}|{name}", 0))

    def _dump(self) -> list[Any]:
        with self.client.pipeline() as pipe:
            for key in self.ledger.keys.all:
                pipe.dump(key)
            return pipe.execute()


@pytest.mark.timeout(400)  # to find the smallest sequence, once one fails
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_no_order_of_calls_breaks_what_must_hold(
    client: redis.Redis, numbers: dict[str, int | float]
) -> None:
    """Prompts, claims, money and completions agree after every call of any sequence."""
    Machine.client, Machine.numbers = client, numbers
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
