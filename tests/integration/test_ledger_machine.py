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

from fleet.ledger import Charge, Claim, Ledger

PROMPTS = ("a", "b", "c", "d")
DATASETS = ("D", "E")
PAYLOAD = b'{"messages":[]}'


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
        self.settled: list[tuple[str, Claim, Charge]] = []
        #: Money reported, and presumed by the workers themselves, in nano-USD.
        self.spent = 0
        self.presumed = 0
        self.rejects = 0

    def teardown(self) -> None:
        self.client.delete(*self.ledger.keys.all)

    @initialize()
    def open(self) -> None:
        self.ledger.open({}, self.numbers)
        for name in DATASETS:
            self.ledger.open_dataset(name, prompts=9, budget_tokens=0, prior_tokens=100)

    # The feeder's and the user's calls

    @rule(prompt_id=st.sampled_from(PROMPTS))
    def feed(self, prompt_id: str) -> None:
        self.ledger.feed(dataset_of(prompt_id), [(prompt_id, PAYLOAD)], None)

    @rule(most=st.integers(0, 4), lost=st.booleans())
    def resend(self, most: int, lost: bool) -> None:
        if lost:
            for prompt_id in self.client.zrange(self.ledger.keys.queued, 0, -1):
                self.client.zadd(self.ledger.keys.queued, {prompt_id: 1})
        assert len(self.ledger.resend(most, 60 if lost else 0)) <= most

    @rule()
    def pause(self) -> None:
        self.ledger.pause("kind", "reason")

    @rule()
    def resume(self) -> None:
        self.ledger.resume()

    @rule(dataset=st.sampled_from(DATASETS), really=st.integers(0, 5))
    def cancel(self, dataset: str, really: int) -> None:
        if really == 0:
            self.ledger.cancel(dataset)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        failures = sorted(self.ledger.failures(), key=lambda f: f[0])
        chosen = [f for f in failures if data.draw(st.booleans())]
        assert self.ledger.retry(chosen) == len(chosen)

    # The workers' calls

    @rule(
        prompt_id=st.sampled_from([*PROMPTS, *(p + "2" for p in PROMPTS)]),
        lease_s=st.sampled_from([0.0, 600.0]),
    )
    def claim(self, prompt_id: str, lease_s: float) -> None:
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
        presumed=st.integers(0, 2),
    )
    def settle(self, data: st.DataObject, what: str, spent: int, presumed: int) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        charge = Charge(spent, 0 if what == "commit" else presumed)
        self._call(what, held, charge)
        self.settled.append((what, held, charge))
        self.spent += charge.spent_nusd
        self.presumed += charge.presumed_nusd
        self.rejects += what != "commit"

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The reply was lost with the connection: the worker calls again, and nothing changes."""
        what, held, charge = data.draw(st.sampled_from(self.settled))
        before = self._dump()
        self._call(what, held, charge)
        assert self._dump() == before

    def _call(self, what: str, held: Claim, charge: Charge) -> None:
        first_turn = len(held.prompt_id) == 1
        followup = held.prompt_id + "2"
        reject = (event(held.prompt_id, "reject"), b"")
        if what == "commit":
            self.ledger.commit(
                held,
                event(held.prompt_id),
                b"",
                spent_nusd=charge.spent_nusd,
                prompt_tokens=1,
                completion_tokens=10,
                truncated=False,
                provider="P",
                followup=(followup, PAYLOAD) if first_turn else None,
            )
        elif what == "release":
            self.ledger.release(held, 0, failed_attempts=1, charge=charge, kind="k", reject=reject)
        else:
            later = [followup] if first_turn else []
            self.ledger.fail(
                held,
                kind="k",
                reason="r",
                attempts=1,
                followups=later,
                charge=charge,
                reject=reject,
            )

    # What must hold

    @invariant()
    def every_live_prompt_is_in_exactly_one_place(self) -> None:
        places = Counter(self._members("waiting") + self._members("queued"))
        places.update(self._members("claims"))
        live, done = set(self._fields("prompts")), set(self._fields("done"))
        failed = set(self._fields("failures"))
        assert all(places[prompt_id] == 1 for prompt_id in live), places
        # A prompt that a late answer completed may be claimed still, by one who will see.
        stale = set(places) - live
        assert stale <= done
        assert stale <= set(self._members("claims"))
        assert not live & done
        assert not failed & (live | done)

    @invariant()
    def what_is_in_flight_is_what_is_claimed(self) -> None:
        claims = self._fields("claim")
        assert set(claims) == set(self._members("claims"))
        parts = [value.decode().split("|") for value in claims.values()]
        assert self._number("in_flight") == len(parts)
        by_dataset = Counter(part[1] for part in parts)
        for dataset in DATASETS:
            assert self._count(dataset, "in_flight") == by_dataset[dataset]
        assert self._number("reserved") == sum(int(part[2]) for part in parts)
        assert self._number("reserved_variance") == sum(int(part[3]) for part in parts)

    @invariant()
    def all_money_is_counted_once(self) -> None:
        presumed = sum(int(value) for value in self._fields("expired").values())
        assert self._number("spent") == self.spent
        assert self._number("unconfirmed") == presumed + self.presumed

    @invariant()
    def every_done_prompt_has_one_completion(self) -> None:
        entries = self.client.xrange(self.ledger.keys.completions)
        events = [json.loads(fields[b"m"]) for _, fields in entries]
        completed = [e["prompt_id"] for e in events if e["kind"] == "completion"]
        assert sorted(completed) == sorted(self._fields("done"))

    @invariant()
    def the_counters_say_what_is_there(self) -> None:
        done = Counter(dataset_of(prompt_id) for prompt_id in self._fields("done"))
        failed = Counter(dataset_of(prompt_id) for prompt_id in self._fields("failures"))
        for dataset in DATASETS:
            assert self._count(dataset, "done") == done[dataset]
            assert self._count(dataset, "failed") == failed[dataset]

    def _members(self, name: str) -> list[str]:
        return [i.decode() for i in self.client.zrange(getattr(self.ledger.keys, name), 0, -1)]

    def _fields(self, name: str) -> dict[str, bytes]:
        found = self.client.hgetall(getattr(self.ledger.keys, name))
        return {field.decode(): value for field, value in found.items()}

    def _number(self, name: str) -> int:
        return int(self.client.hget(self.ledger.keys.run, name) or 0)

    def _count(self, dataset: str, name: str) -> int:
        return int(self.client.hget(self.ledger.keys.datasets, f"{dataset}|{name}") or 0)

    def _dump(self) -> list[Any]:
        return [self.client.dump(key) for key in self.ledger.keys.all]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_no_order_of_calls_breaks_what_must_hold(
    client: redis.Redis, numbers: dict[str, int | float]
) -> None:
    """Prompts, claims, money and completions agree after every call of any sequence."""
    Machine.client, Machine.numbers = client, numbers
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
