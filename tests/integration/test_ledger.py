"""The ledger on a real Valkey: each transition, the money, the budgets and the pace.

No test sleeps: a claim with a lease of 0 has expired, and an interval is over when its
beginning is set into the past.
"""

import heapq
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from fleet.ledger import Charge, Claim, Fed, Ledger, Refusal, nano_usd

PAYLOAD = b'{"messages":[]}'
EVENT = json.dumps({"kind": "completion", "prompt_id": "p"}).encode()
LEASE_S = 600.0
Numbers = dict[str, int | float]


def open_dataset(ledger: Ledger, name: str = "D", budget: int = 0, prior: int = 100) -> None:
    ledger.open_dataset(name, prompts=1000, budget_tokens=budget, prior_tokens=prior)


def feed(ledger: Ledger, *ids: str, dataset: str = "D") -> list[str]:
    fed = [Fed(i, PAYLOAD, 0) for i in ids]
    accepted = ledger.feed(dataset, fed, None)
    return [i for i, ok in zip(ids, accepted, strict=False) if ok]


def claim(ledger: Ledger, prompt_id: str = "p", lease_s: float = LEASE_S) -> Claim:
    got = ledger.claim(prompt_id, "worker", lease_s)
    assert isinstance(got, Claim), got
    return got


def refused(ledger: Ledger, prompt_id: str = "p") -> str:
    got = ledger.claim(prompt_id, "worker", LEASE_S)
    assert isinstance(got, Refusal), got
    return got.reason


def commit(ledger: Ledger, held: Claim, spent: int = 1000, tokens: int = 10, **more: Any) -> str:
    event = json.dumps({"kind": "completion", "prompt_id": held.prompt_id}).encode()
    fields = {"prompt_tokens": 5, "truncated": False, "provider": "P"} | more
    return ledger.commit(held, event, b"body", spent_nusd=spent, completion_tokens=tokens, **fields)


def fail(ledger: Ledger, held: Claim, **more: Any) -> None:
    ledger.fail(held, kind="bad request", reason="no", attempts=1, **more)


def state(ledger: Ledger, prompt_id: str = "p") -> str:
    """The one state that a prompt is in."""
    client, keys = ledger.client, ledger.keys
    places = {
        "waiting": client.zscore(keys.waiting, prompt_id) is not None,
        "queued": client.zscore(keys.queued, prompt_id) is not None,
        "claimed": client.zscore(keys.claims, prompt_id) is not None,
        "done": client.hexists(keys.done, prompt_id),
        "failed": client.hexists(keys.failures, prompt_id),
    }
    (place,) = [name for name, there in places.items() if there] or ["forgotten"]
    live = place in ("waiting", "queued", "claimed")
    assert client.hexists(keys.prompts, prompt_id) is live
    return place


def money(ledger: Ledger) -> tuple[int, int, int, int]:
    """Spent, unconfirmed, reserved, and the most that what is reserved for may cost."""
    names = ("spent", "unconfirmed", "reserved", "reserved_most")
    return tuple(int(v or 0) for v in ledger.client.hmget(ledger.keys.run, names))  # type: ignore[return-value]


def dump(ledger: Ledger) -> dict[str, Any]:
    """All that is on the ledger."""
    client, found = ledger.client, {}
    for key in ledger.keys.all:
        kind = client.type(key)
        if kind == b"hash":
            found[key] = client.hgetall(key)
        elif kind == b"zset":
            found[key] = client.zrange(key, 0, -1, withscores=True)
        elif kind == b"stream":
            found[key] = client.xrange(key)
    return found


def past(ledger: Ledger, key: str, field: str) -> None:
    """Let an interval be over: its time was long ago."""
    ledger.client.hset(key, field, 1)


# The arrows of the state diagram


def test_feed_puts_a_new_prompt_on_the_ledger_as_queued(ledger: Ledger) -> None:
    """feed: → queued; only what is new is to be sent."""
    open_dataset(ledger)
    assert feed(ledger, "p", "q") == ["p", "q"]
    assert feed(ledger, "q", "r") == ["r"]
    assert state(ledger, "p") == "queued"
    assert ledger.live() == {"D": 3}


def test_claim_takes_a_queued_prompt(ledger: Ledger) -> None:
    """claim: queued → claimed, with its payload and a reservation."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger)
    assert (held.payload, held.dataset, held.attempts) == (PAYLOAD, "D", 0)
    assert state(ledger) == "claimed"
    spent, unconfirmed, reserved, most = money(ledger)
    assert (spent, unconfirmed, reserved) == (0, 0, held.reserved_nusd)
    assert held.reserved_nusd > 0
    assert most >= reserved


def test_a_claim_whose_reply_was_lost_is_given_again(ledger: Ledger) -> None:
    """The same call twice is one claim, with one reservation; another call is refused."""
    open_dataset(ledger)
    feed(ledger, "p")
    first = ledger.claim("p", "w", LEASE_S, "nonce")
    assert ledger.claim("p", "w", LEASE_S, "nonce") == first
    assert isinstance(ledger.claim("p", "w", LEASE_S, "other"), Refusal)
    assert ledger.snapshot().in_flight == 1


def test_two_workers_never_hold_one_prompt(ledger: Ledger) -> None:
    """While one claim lives, another is refused with the time until it may change."""
    open_dataset(ledger)
    feed(ledger, "p")
    claim(ledger)
    second = ledger.claim("p", "other", LEASE_S)
    assert isinstance(second, Refusal)
    assert second.reason == "claimed"
    assert 0 < second.retry_after_s <= LEASE_S


def test_commit_records_the_completion_and_settles_the_money(ledger: Ledger) -> None:
    """commit: claimed → done, in one step with the stream and the counters."""
    open_dataset(ledger)
    feed(ledger, "p")
    assert commit(ledger, claim(ledger), spent=1234, tokens=10, truncated=True) == "committed"
    assert state(ledger) == "done"
    assert money(ledger) == (1234, 0, 0, 0)
    ((_, entry),) = ledger.client.xrange(ledger.keys.completions)
    assert entry[b"r"] == b"body"
    (dataset,) = ledger.snapshot().datasets
    assert (dataset.done, dataset.tokens, dataset.prompt_tokens, dataset.truncated) == (1, 10, 5, 1)
    assert ledger.snapshot().providers == {"P": {"done": 1, "tokens": 10, "spent": 1234}}
    assert refused(ledger) == "done"
    assert feed(ledger, "p") == []


def test_release_gives_a_prompt_back_to_wait(ledger: Ledger) -> None:
    """release: claimed → waiting, its failed attempts counted, its reservation returned."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.release(claim(ledger), 0, failed_attempts=2, kind="server failed", message="m")
    assert state(ledger) == "waiting"
    assert money(ledger) == (0, 0, 0, 0)
    assert claim(ledger).attempts == 2
    snapshot = ledger.snapshot()
    assert (snapshot.errors, snapshot.last_errors) == ({"server failed": 1}, {"server failed": "m"})


def test_a_released_prompt_waits_its_time(ledger: Ledger) -> None:
    """Before its delay is over a prompt is neither sent nor claimed."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.release(claim(ledger), 60)
    assert refused(ledger) == "waiting"
    assert ledger.resend(10, 0) == []


def test_fail_moves_a_prompt_and_its_later_turns_to_the_dead_letters(ledger: Ledger) -> None:
    """fail: claimed → failed; the turns that would follow fail with it."""
    open_dataset(ledger)
    feed(ledger, "p")
    fail(ledger, claim(ledger), followups=["p2", "p3"], charge=Charge(spent_nusd=7))
    failures = dict(ledger.failures())
    assert {i: f["kind"] for i, f in failures.items()} == {
        "p": "bad request",
        "p2": "parent failed",
        "p3": "parent failed",
    }
    assert failures["p"]["payload"] == PAYLOAD.decode()
    assert money(ledger) == (7, 0, 0, 0)
    assert ledger.snapshot().failed == 3
    assert feed(ledger, "p", "p2") == []
    assert ledger.outcomes(["p", "p2", "x"]) == ["failed", "failed", "open"]


def test_yield_sends_a_queued_prompt_back_unclaimed(ledger: Ledger) -> None:
    """yield_: queued → waiting."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.yield_("p", 0)
    assert state(ledger) == "waiting"


@pytest.mark.parametrize("taken", ["claimed", "done", "unknown"])
def test_yield_of_a_prompt_that_is_not_queued_does_nothing(ledger: Ledger, taken: str) -> None:
    """A stray message changes nothing."""
    open_dataset(ledger)
    if taken != "unknown":
        feed(ledger, "p")
        held = claim(ledger)
        if taken == "done":
            commit(ledger, held)
    before = dump(ledger)
    ledger.yield_("p", 0)
    assert dump(ledger) == before


def test_yield_does_not_shorten_a_wait(ledger: Ledger) -> None:
    """A stray message of a prompt that backs off does not make it due."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.release(claim(ledger), 60)
    ledger.yield_("p", 0)
    assert refused(ledger) == "waiting"


def test_resend_queues_what_is_due(ledger: Ledger) -> None:
    """resend: waiting → queued, at most as many as asked for."""
    open_dataset(ledger)
    feed(ledger, "p", "q")
    for prompt_id in ("p", "q"):
        ledger.yield_(prompt_id, 0)
    assert len(ledger.resend(1, 0)) == 1
    assert len(ledger.resend(5, 0)) == 1
    assert (state(ledger, "p"), state(ledger, "q")) == ("queued", "queued")


def test_resend_sends_a_lost_message_again_only_when_told_that_it_is_lost(ledger: Ledger) -> None:
    """A queued prompt counts as lost by the age of its message."""
    open_dataset(ledger)
    feed(ledger, "p")
    assert ledger.resend(10, 0) == []
    assert ledger.resend(10, 60) == []
    ledger.client.zadd(ledger.keys.queued, {"p": 1})
    assert ledger.resend(10, 60) == ["p"]
    assert ledger.resend(10, 60) == []
    assert state(ledger) == "queued"


def test_a_lost_prompt_of_a_cancelled_dataset_is_forgotten_whole(ledger: Ledger) -> None:
    """Looking for lost messages leaves nothing of a forgotten prompt behind."""
    open_dataset(ledger)
    ledger.cancel("D")
    feed(ledger, "p")  # a feeder that had not heard of it
    ledger.client.zadd(ledger.keys.queued, {"p": 1, "stray": 1})
    assert ledger.resend(10, 60) == []
    assert (state(ledger, "p"), state(ledger, "stray")) == ("forgotten", "forgotten")


def test_resend_releases_a_claim_that_expired(ledger: Ledger) -> None:
    """Its worker went silent: the prompt is sent again, its reservation is presumed spent."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger, lease_s=0)
    assert ledger.resend(10, 0) == ["p"]
    assert state(ledger) == "queued"
    assert money(ledger) == (0, held.reserved_nusd, 0, 0)
    assert ledger.snapshot().expired == 1


def test_bury_lets_the_claims_of_a_dead_worker_expire(ledger: Ledger) -> None:
    """Only those whose worker's name begins so."""
    open_dataset(ledger)
    feed(ledger, "p", "q")
    ledger.claim("p", "host:1:a", LEASE_S)
    ledger.claim("q", "host:2:b", LEASE_S)
    assert ledger.bury("host:1:") == 1
    assert ledger.resend(10, 0) == ["p"]
    assert state(ledger, "q") == "claimed"


def test_retry_takes_failed_prompts_out_of_the_dead_letters(ledger: Ledger) -> None:
    """retry: failed → waiting; a turn that its parent will send is only taken out."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.release(claim(ledger), 0, failed_attempts=3)
    fail(ledger, claim(ledger), followups=["p2"])
    assert ledger.retry(list(ledger.failures())) == 2
    assert ledger.retry([("p", {"dataset": "D", "payload": "x"})]) == 0
    assert (state(ledger, "p"), state(ledger, "p2")) == ("waiting", "forgotten")
    assert ledger.snapshot().failed == 0
    held = claim(ledger)
    assert (held.payload, held.attempts) == (PAYLOAD, 0)
    commit(ledger, held, followup=("p2", PAYLOAD))
    assert state(ledger, "p2") == "waiting"


def test_cancel_forgets_what_is_not_in_flight(ledger: Ledger) -> None:
    """cancel: waiting, queued → forgotten; what is in flight is kept when it comes."""
    open_dataset(ledger)
    open_dataset(ledger, "E")
    feed(ledger, "p", "q", "r")
    feed(ledger, "e", dataset="E")
    held = claim(ledger, "p")
    ledger.yield_("q", 0)
    assert ledger.cancel("D") == 2
    assert [state(ledger, i) for i in "pqre"] == ["claimed", "forgotten", "forgotten", "queued"]
    assert commit(ledger, held) == "committed"
    assert feed(ledger, "s") == [], "nothing of a cancelled dataset is fed"
    assert state(ledger, "s") == "forgotten"
    open_dataset(ledger)
    assert ledger.snapshot().datasets[0].cancelled


def test_a_claim_released_after_cancel_is_forgotten(ledger: Ledger) -> None:
    """A cancelled prompt that comes back is not sent again."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger)
    ledger.cancel("D")
    ledger.release(held, 0)
    assert ledger.resend(10, 0) == []
    assert state(ledger) == "forgotten"


# Repeated calls, late calls, duplicates


@pytest.mark.parametrize(
    "charge", [Charge(), Charge(spent_nusd=5), Charge(presumed_nusd=5), Charge(5, 5)]
)
@pytest.mark.parametrize("what", ["commit", "release", "fail"])
@pytest.mark.parametrize("lease_s", [LEASE_S, 0])
def test_a_repeated_call_changes_nothing(
    ledger: Ledger, what: str, charge: Charge, lease_s: float
) -> None:
    """A reply lost with the connection makes a worker call again: no money twice, no state."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger, lease_s=lease_s)
    if lease_s == 0:
        ledger.resend(10, 0)

    def call() -> str:
        if what == "commit":
            return commit(ledger, held, spent=charge.spent_nusd)
        if what == "release":
            ledger.release(held, 0, failed_attempts=1, charge=charge, kind="k", message="m")
        else:
            fail(ledger, held, charge=charge, followups=["p2"])
        return ""

    call()
    before = dump(ledger)
    assert call() in ("repeated", "")
    assert dump(ledger) == before


def test_a_late_commit_undoes_what_was_presumed(ledger: Ledger) -> None:
    """The claim expired, then its answer came after all: its own cost counts."""
    open_dataset(ledger)
    feed(ledger, "p")
    late = claim(ledger, lease_s=0)
    ledger.resend(10, 0)
    assert commit(ledger, late, spent=55) == "committed"
    assert money(ledger) == (55, 0, 0, 0)
    assert state(ledger) == "done"


def test_of_two_answers_the_first_stays_and_both_are_paid(ledger: Ledger) -> None:
    """A late answer comes while the prompt is claimed again: one row, the money of both."""
    open_dataset(ledger)
    feed(ledger, "p")
    late = claim(ledger, lease_s=0)
    again = claim(ledger)
    assert commit(ledger, late, spent=55) == "committed"
    before = ledger.client.xlen(ledger.keys.completions)
    assert commit(ledger, again, spent=66) == "duplicate"
    assert commit(ledger, again, spent=66) == "repeated"
    assert commit(ledger, late, spent=55) == "repeated"
    assert ledger.client.xlen(ledger.keys.completions) == before == 1
    assert money(ledger) == (121, 0, 0, 0)
    snapshot = ledger.snapshot()
    assert (snapshot.duplicates, snapshot.done, snapshot.in_flight) == (1, 1, 0)
    assert snapshot.providers["P"]["spent"] == 121


def test_a_late_failure_leaves_the_next_claim_alone(ledger: Ledger) -> None:
    """Only the money of an expired claim's release or failure counts."""
    open_dataset(ledger)
    feed(ledger, "p")
    late = claim(ledger, lease_s=0)
    again = claim(ledger)
    fail(ledger, late, charge=Charge(spent_nusd=9))
    assert state(ledger) == "claimed"
    assert money(ledger)[:3] == (9, 0, again.reserved_nusd)
    assert commit(ledger, again) == "committed"


def test_a_late_answer_takes_its_prompt_out_of_the_dead_letters(ledger: Ledger) -> None:
    """Its turns too: they are sent now that their parent has its answer."""
    open_dataset(ledger)
    feed(ledger, "p")
    late = claim(ledger, lease_s=0)
    fail(ledger, claim(ledger), followups=["p2"])
    assert commit(ledger, late, followup=("p2", PAYLOAD)) == "committed"
    assert (state(ledger, "p"), state(ledger, "p2")) == ("done", "waiting")
    assert ledger.snapshot().failed == 0


def test_a_rejected_response_is_kept_and_paid(ledger: Ledger) -> None:
    """A response that was paid for and refused goes to the stream with its reason."""
    open_dataset(ledger)
    feed(ledger, "p")
    reject = (b'{"kind":"reject"}', b"body")
    ledger.release(claim(ledger), 0, charge=Charge(3), kind="wrong provider", reject=reject)
    assert ledger.client.xlen(ledger.keys.completions) == 1
    assert ledger.snapshot().rejected == 1
    assert money(ledger)[0] == 3


def test_a_follow_up_turn_is_sent_when_its_parent_is_done(ledger: Ledger) -> None:
    """The turn's payload comes with the parent's commit; a repeated commit sends it once."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger)
    commit(ledger, held, followup=("p2", b'{"messages":[1]}'))
    assert ledger.resend(10, 0) == ["p2"]
    second = claim(ledger, "p2")
    assert (second.payload, second.dataset) == (b'{"messages":[1]}', "D")
    commit(ledger, held, followup=("p2", b"x"))
    commit(ledger, second)
    assert ledger.live() == {}


# The run as a whole


def test_a_pause_keeps_its_first_reason_and_stops_claims(ledger: Ledger) -> None:
    """Paused: no claim, no sending; nothing is lost, and resume goes on."""
    open_dataset(ledger)
    feed(ledger, "p", "q")
    held = claim(ledger, "q")
    assert ledger.pause("out of credits", "first")
    assert not ledger.pause("key refused", "second")
    paused = ledger.paused()
    assert paused is not None
    assert (paused["kind"], paused["reason"]) == ("out of credits", "first")
    assert refused(ledger) == "paused"
    assert state(ledger) == "waiting"
    assert ledger.resend(10, 0) == []
    assert commit(ledger, held) == "committed"
    assert ledger.resume()
    assert not ledger.resume()
    assert ledger.resend(10, 0) == ["p"]
    assert claim(ledger)


def test_the_cursor_only_moves_on(ledger: Ledger) -> None:
    """Two feeders feed the same rows: each prompt is sent once, the cursor never goes back."""
    open_dataset(ledger)
    rows = [Fed(f"p{i}", PAYLOAD, i + 1) for i in range(6)]
    assert ledger.feed("D", rows[:4], 4) == [True] * 4
    assert ledger.feed("D", rows, 6) == [False] * 4 + [True] * 2
    assert not any(ledger.feed("D", rows[:2], 2) + ledger.feed("D", rows[2:], None))
    assert ledger.cursor("D") == 6


def test_a_dataset_is_fed_only_as_long_as_it_has_room(ledger: Ledger) -> None:
    """What would only be refused is not put on the ledger, and the cursor stands before it."""
    open_dataset(ledger, budget=1000, prior=100)
    rows = [Fed(f"p{i}", PAYLOAD, i + 1) for i in range(50)]
    accepted = ledger.feed("D", rows, 50)
    assert 0 < len(accepted) < 20
    assert ledger.cursor("D") == len(accepted) == ledger.snapshot().live


def test_feeding_up_to_the_room_does_not_end_a_dataset(ledger: Ledger) -> None:
    """A dataset ends when nothing is in flight and one more answer would be too many, not when
    the prompts that were just fed fill its room."""
    open_dataset(ledger, budget=1000, prior=100)
    fed = feed(ledger, *(f"p{i}" for i in range(50)))
    assert not ledger.snapshot().datasets[0].ended
    for prompt_id in fed:
        ledger.yield_(prompt_id, 0)
    assert ledger.resend(50, 0)
    assert not ledger.snapshot().datasets[0].ended


def test_a_bought_up_dataset_ends_though_nothing_of_it_is_live(ledger: Ledger) -> None:
    """A budget that is set below what was bought already ends the dataset at the next feeding."""
    open_dataset(ledger)
    feed(ledger, "p")
    commit(ledger, claim(ledger, "p"), tokens=500)
    open_dataset(ledger, budget=100)
    assert feed(ledger, "q") == []
    assert ledger.snapshot().datasets[0].ended


def test_parked_prompts_come_back_when_the_budget_is_raised(
    ledger: Ledger, numbers: Numbers
) -> None:
    """At its end a dataset's prompts are in nobody's way, and not forgotten."""
    open_dataset(ledger)
    feed(ledger, "p", "q")
    commit(ledger, claim(ledger, "p"), tokens=500)
    open_dataset(ledger, budget=100)
    assert refused(ledger, "q") == "budget"
    assert ledger.resend(10, 0) == []
    assert ledger.snapshot().waiting == 0
    ledger.open({}, numbers)
    open_dataset(ledger, budget=5000)
    assert ledger.resend(10, 0) == ["q"]


def test_lost_messages_are_sent_again_though_the_window_is_full(ledger: Ledger) -> None:
    """No room for new messages is no reason to leave lost ones lost."""
    open_dataset(ledger)
    feed(ledger, "p", "q")
    ledger.client.zadd(ledger.keys.queued, {"p": 1, "q": 1})
    assert sorted(ledger.resend(0, 1)) == ["p", "q"]


def test_no_share_is_handed_out_before_the_run_is_opened(
    client: redis.Redis, numbers: Numbers
) -> None:
    """A pacer that speaks first does not fix the limit at nothing."""
    ledger = Ledger(client, "unopened")
    assert pace(ledger).share == 0
    ledger.open({}, numbers)
    assert pace(ledger).share == 8


def test_a_completed_run_leaves_exactly_these_keys(ledger: Ledger) -> None:
    """Nothing of a finished prompt stays but that it is done; no money is held."""
    open_dataset(ledger)
    feed(ledger, "p", "q", "r")
    ledger.release(claim(ledger, "p"), 0, failed_attempts=1, kind="server failed", message="m")
    commit(ledger, claim(ledger, "p"), followup=("p2", PAYLOAD))
    commit(ledger, claim(ledger, "p2"))
    commit(ledger, claim(ledger, "q"))
    late = claim(ledger, "r", lease_s=0)
    commit(ledger, claim(ledger, "r"))
    commit(ledger, late)
    ledger.pace("worker", capacity=4, in_flight=0, successes=4)
    ledger.pace("worker", capacity=4, in_flight=0, leaving=True)
    prefix = ledger.keys.run.removesuffix("run")
    left = {k.decode().removeprefix(prefix) for k in ledger.client.keys(f"{prefix}*")}
    assert left == {
        "run", "datasets", "done", "completions", "errors", "providers", "pacing", "settled",
    }  # fmt: skip
    assert money(ledger)[1:] == (0, 0, 0)
    assert ledger.snapshot().in_flight == 0


def test_outcomes_of_nothing_are_nothing(ledger: Ledger) -> None:
    """An empty question is no error."""
    assert ledger.outcomes([]) == []


# Budgets and money


class ClockedLedger(Ledger):
    """A ledger whose scripts read the test's clock instead of the server's."""

    def __init__(self, of: Ledger) -> None:
        super().__init__(of.client, of.keys.run_name)
        self._clock = f"{of.keys.run_name}-clock"
        told = f"redis.call('HMGET', '{self._clock}', 's', 'us')"
        for name, script in self._scripts.items():
            text = str(script.script).replace("redis.call('TIME')", told)
            self._scripts[name] = self.client.register_script(text)
        self.tell(0)

    def tell(self, now_ms: float) -> None:
        ms = 1_800_000_000_000 + int(now_ms)
        clock = {"s": ms // 1000, "us": ms % 1000 * 1000}
        self.client.hset(self._clock, mapping=clock)
        self.client.expire(self._clock, 600)


SIZES: dict[str, Callable[[random.Random], float]] = {
    "long tail": lambda r: r.lognormvariate(5.5, 1.0),
    "memoryless": lambda r: r.expovariate(1 / 800),
    "two kinds": lambda r: 300 if r.random() < 0.8 else r.lognormvariate(8, 0.4),
}


class Fleet:
    """A simulated fleet: an answer takes the time of its tokens, so long ones come last."""

    def __init__(self, ledger: Ledger, slots: int, sizes: str, seed: int = 1) -> None:
        self.ledger = ClockedLedger(ledger)
        self.random = random.Random(seed)
        self.flying: list[tuple[float, str, Claim, int]] = []
        self.now_ms = 0.0
        self._sizes = SIZES[sizes]
        self._slots = slots
        self._fed = 0
        self._ready: list[str] = []

    def fill(self) -> str:
        """Claim until every slot is taken, or the ledger refuses; returns its reason."""
        while len(self.flying) < self._slots:
            if not self._ready:
                self._ready = self.ledger.resend(50, 0)
            if not self._ready:
                ids = [f"p{self._fed + i}" for i in range(50)]
                self._ready = feed(self.ledger, *ids)
                self._fed += len(self._ready)
            if not self._ready:
                return "budget"
            self.random.shuffle(self._ready)
            prompt_id = self._ready.pop()
            got = self.ledger.claim(prompt_id, "w", 10 * LEASE_S)
            if isinstance(got, Refusal):
                return got.reason
            size = min(int(self._sizes(self.random)) + 1, 8000)
            ends_ms = self.now_ms + 20 * size * self.random.uniform(0.8, 1.2)
            heapq.heappush(self.flying, (ends_ms, prompt_id, got, size))
        return ""

    def land(self, price: int) -> None:
        self.now_ms, _, held, size = heapq.heappop(self.flying)
        self.ledger.tell(self.now_ms)
        assert commit(self.ledger, held, spent=size * price, tokens=size) == "committed"


@pytest.mark.parametrize(
    ("sizes", "slots"),
    [("long tail", 200), ("long tail", 1000), ("memoryless", 200), ("two kinds", 200)],
)
def test_a_dataset_ends_within_half_a_percent_of_its_budget(
    ledger: Ledger, numbers: Numbers, sizes: str, slots: int
) -> None:
    """Admission tapers off: the answers in flight bring the total to the budget, though the
    short ones come first and the slots could hold a good part of it.
    """
    budget = 800_000
    ledger.open({}, numbers | {"max_tokens": 8000})
    open_dataset(ledger, budget=budget, prior=4000)
    fleet = Fleet(ledger, slots, sizes)
    reason = fleet.fill()
    while fleet.flying:
        fleet.land(1)
        reason = fleet.fill()
    (dataset,) = ledger.snapshot().datasets
    assert reason == "budget"
    assert dataset.ended
    assert abs(dataset.tokens - budget) < 0.005 * budget, dataset.tokens


@pytest.mark.parametrize("sizes", SIZES)
def test_the_cap_is_never_exceeded_and_nearly_used(
    ledger: Ledger, numbers: Numbers, sizes: str
) -> None:
    """At no moment is more spent than the cap, nor could be if every answer came at its
    longest; at the end less than one such answer is left.
    """
    price, cap = 1000, nano_usd(1.0)
    more = {"max_tokens": 8000, "cap": cap, "prompt_price": 0}
    ledger.open({}, numbers | more)
    open_dataset(ledger, prior=4000)
    fleet = Fleet(ledger, 100, sizes)
    fleet.fill()
    while fleet.flying:
        fleet.land(price)
        reason = fleet.fill()
        assert money(ledger)[0] + len(fleet.flying) * 8000 * price <= cap
    assert reason == "cap"
    spent, unconfirmed, reserved, most = money(ledger)
    assert (unconfirmed, reserved, most) == (0, 0, 0)
    assert cap - 8000 * price <= spent <= cap
    assert ledger.snapshot().cap_reached
    ledger.open({}, numbers | more | {"cap": 2 * cap})
    assert not ledger.snapshot().cap_reached
    fleet.fill()
    assert fleet.flying


def test_an_answer_of_no_tokens_and_no_prior_breaks_no_script(ledger: Ledger) -> None:
    """Sizes of 0 divide nothing by 0."""
    open_dataset(ledger, budget=10, prior=0)
    feed(ledger, "p", "q")
    commit(ledger, claim(ledger, "p"), tokens=0, spent=0)
    claim(ledger, "q")


# The pace


def pace(ledger: Ledger, worker: str = "w", capacity: int = 100, **seen: Any) -> Any:
    return ledger.pace(worker, capacity=capacity, in_flight=0, **seen)


def test_the_limit_falls_once_a_burst_and_climbs_back(ledger: Ledger) -> None:
    """Additive increase, multiplicative decrease: a burst of 429s is one event."""
    assert pace(ledger).limit == 8
    past(ledger, ledger.keys.pacing, "window_at")
    assert pace(ledger, throttles=5).limit == 4
    assert pace(ledger, throttles=50).limit == 4
    assert pace(ledger, successes=4).limit < 8
    past(ledger, ledger.keys.pacing, "window_at")
    assert pace(ledger, throttles=1).limit == 2
    past(ledger, ledger.keys.pacing, "grown_at")
    assert pace(ledger, successes=100).limit > 2


def test_a_few_throttled_answers_among_many_cost_little(ledger: Ledger) -> None:
    """The limit falls in proportion to the share of answers that were throttled."""
    pace(ledger)
    assert pace(ledger, successes=56).limit == 64
    past(ledger, ledger.keys.pacing, "window_at")
    assert 60 <= pace(ledger, throttles=1).limit < 64


def test_the_limit_doubles_a_second_while_it_is_used_and_nothing_is_throttled(
    ledger: Ledger,
) -> None:
    """Long answers do not make the slow start slow; a limit that nobody uses does not grow."""
    assert pace(ledger).limit == 8
    past(ledger, ledger.keys.pacing, "grown_at")
    assert pace(ledger).limit == 8
    open_dataset(ledger)
    for prompt_id in feed(ledger, *(f"p{i}" for i in range(8))):
        claim(ledger, prompt_id)
    past(ledger, ledger.keys.pacing, "grown_at")
    assert pace(ledger).limit == 16


def test_a_few_throttles_among_many_answers_cost_little(ledger: Ledger) -> None:
    """The limit falls in proportion to the share of answers that were throttled."""
    assert pace(ledger, successes=56).limit == 64
    past(ledger, ledger.keys.pacing, "window_at")
    pace(ledger)  # a new window begins
    pace(ledger, successes=95)
    assert pace(ledger, throttles=5).limit == 64, "not before the window is over"
    past(ledger, ledger.keys.pacing, "window_at")
    assert pace(ledger).limit == int(64 * (1 - 0.5 * 0.05))


def test_the_limit_never_falls_below_one(ledger: Ledger) -> None:
    """However long the throttling, one request probes."""
    for _ in range(20):
        past(ledger, ledger.keys.pacing, "window_at")
        limit = pace(ledger, throttles=1).limit
    assert limit == 1
    assert pace(ledger).share == 1


def test_the_limit_doubles_a_round_and_stops_at_the_ceiling(
    ledger: Ledger, numbers: Numbers
) -> None:
    """Slow start: each answer adds one, up to `concurrency`."""
    assert pace(ledger, successes=8).limit == 16
    assert pace(ledger, successes=16).limit == 32
    for _ in range(10):
        limit = pace(ledger, successes=64).limit
    assert limit == 64
    ledger.open({}, numbers | {"concurrency": 10})
    assert pace(ledger).limit == 10


@pytest.mark.parametrize("start", [1, 3, 7, 64])
@pytest.mark.parametrize("capacities", [[1], [50] * 4, [1, 2, 3, 40], [10] * 11])
def test_the_shares_sum_to_the_limit(
    ledger: Ledger, numbers: Numbers, start: int, capacities: list[int]
) -> None:
    """Whatever the workers and their capacities; in the proportion of the capacities."""
    ledger.open({}, numbers | {"start": start})
    workers = {f"w{i}": capacity for i, capacity in enumerate(capacities)}
    for _ in range(3):  # again if the turn changed in between
        for name, capacity in workers.items():
            pace(ledger, name, capacity)
        shares = [pace(ledger, name, capacity).share for name, capacity in workers.items()]
        if sum(shares) == start:
            break
    assert sum(shares) == start
    for capacity, share in zip(capacities, shares, strict=True):
        assert abs(share - start * capacity / sum(capacities)) <= 1


def test_a_worker_that_leaves_or_dies_gives_up_its_share(ledger: Ledger) -> None:
    """By signing off at once, by silence after 30 s."""
    for name in ("a", "b", "c"):
        pace(ledger, name)
    assert pace(ledger, "a", leaving=True).share == 0
    ledger.client.hset(ledger.keys.workers, "b", "1|100|0")
    last = pace(ledger, "c")
    assert (last.share, last.workers) == (8, 1)


def test_the_breaker_opens_only_when_nothing_succeeds(ledger: Ledger) -> None:
    """Any success counts the failures anew; throttles are none."""
    for _ in range(5):
        assert not pace(ledger, failures=2).breaker_open
        assert not pace(ledger, successes=1, failures=2).breaker_open
        assert not pace(ledger, throttles=9).breaker_open
    assert not pace(ledger, failures=2).breaker_open
    assert pace(ledger, failures=1).breaker_open


def test_what_is_in_flight_may_still_succeed(ledger: Ledger) -> None:
    """A burst of failures opens nothing while more requests than those are in flight."""
    open_dataset(ledger)
    feed(ledger, *(f"p{i}" for i in range(10)))
    for i in range(10):
        claim(ledger, f"p{i}")
    assert not pace(ledger, failures=9).breaker_open
    assert pace(ledger, failures=1).breaker_open


def test_an_open_breaker_lets_one_claim_pass_an_interval(ledger: Ledger) -> None:
    """The others wait until the next; a success closes it, and so does resume."""
    open_dataset(ledger)
    feed(ledger, *"pqrst")
    pace(ledger, failures=3)
    assert refused(ledger, "p") == "breaker"
    past(ledger, ledger.keys.run, "breaker_probe")
    claim(ledger, "q")
    assert refused(ledger, "r") == "breaker"
    assert pace(ledger, failures=1).breaker_open
    assert not pace(ledger, successes=1).breaker_open
    claim(ledger, "s")
    pace(ledger, failures=9)
    ledger.resume()
    claim(ledger, "t")


def test_a_full_dataset_does_not_eat_the_breakers_probe(ledger: Ledger) -> None:
    """Only a claim that is granted is a probe."""
    open_dataset(ledger, "FULL")
    open_dataset(ledger)
    feed(ledger, "f", dataset="FULL")
    open_dataset(ledger, "FULL", budget=1)
    feed(ledger, "p")
    pace(ledger, failures=3)
    past(ledger, ledger.keys.run, "breaker_probe")
    assert refused(ledger, "f") == "budget"
    claim(ledger, "p")
