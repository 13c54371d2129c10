"""The ledger on a real Valkey: each transition, late and repeated calls, the run as a whole.

No test sleeps: a claim with a lease of 0 has expired.
"""

import pytest
import redis
from ledger_kit import (
    LEASE_S,
    PAYLOAD,
    Numbers,
    claim,
    commit,
    dump,
    fail,
    feed,
    money,
    open_dataset,
    refused,
    state,
)

from fleet.ledger import Ledger
from fleet.transitions import Failure, Fed, Refusal, Route

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
    (endpoint,) = ledger.snapshot().endpoints
    assert (endpoint.done, endpoint.tokens, endpoint.prompt_tokens) == (1, 10, 5)
    assert (endpoint.in_flight, endpoint.asked) == (0, 1)
    assert endpoint.spent_usd == pytest.approx(1234e-9)
    assert refused(ledger) == "done"
    assert feed(ledger, "p") == []


def test_release_gives_a_prompt_back_to_wait(ledger: Ledger) -> None:
    """release: claimed → waiting, its failed attempts counted, its reservation returned."""
    open_dataset(ledger)
    feed(ledger, "p")
    ledger.release(claim(ledger), 0, Failure("server failed", "m"), failed_attempts=2)
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
    fail(ledger, claim(ledger), followups=["p2", "p3"], spent_nusd=7)
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


@pytest.mark.parametrize(("spent", "presumed"), [(0, False), (5, False), (0, True), (5, True)])
@pytest.mark.parametrize("what", ["commit", "release", "fail"])
@pytest.mark.parametrize("lease_s", [LEASE_S, 0])
def test_a_repeated_call_changes_nothing(
    ledger: Ledger, what: str, spent: int, presumed: bool, lease_s: float
) -> None:
    """A reply lost with the connection makes a worker call again: no money twice, no state."""
    open_dataset(ledger)
    feed(ledger, "p")
    held = claim(ledger, lease_s=lease_s)
    if lease_s == 0:
        ledger.resend(10, 0)

    def call() -> str:
        if what == "commit":
            return commit(ledger, held, spent=spent)
        if what == "release":
            failure = Failure("k", "m", "failed", spent_nusd=spent, presumed=presumed)
            ledger.release(held, 0, failure, failed_attempts=1)
        else:
            fail(ledger, held, ["p2"], spent_nusd=spent, presumed=presumed)
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
    assert snapshot.endpoints[0].spent_usd == pytest.approx(121e-9)


def test_a_late_failure_leaves_the_next_claim_alone(ledger: Ledger) -> None:
    """Only the money of an expired claim's release or failure counts."""
    open_dataset(ledger)
    feed(ledger, "p")
    late = claim(ledger, lease_s=0)
    again = claim(ledger)
    fail(ledger, late, spent_nusd=9)
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
    failure = Failure("wrong provider", verdict="failed", spent_nusd=3, reject=reject)
    ledger.release(claim(ledger), 0, failure)
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
    assert ledger.pace("w", capacity=9, in_flight=0).share == 0
    ledger.open({}, numbers)
    ledger.set_routes([Route("p/int4", "P", 100, 1000, start=8)])
    assert ledger.pace("w", capacity=9, in_flight=0).share == 8


def test_a_completed_run_leaves_exactly_these_keys(ledger: Ledger) -> None:
    """Nothing of a finished prompt stays but that it is done; no money is held."""
    open_dataset(ledger)
    feed(ledger, "p", "q", "r")
    ledger.release(claim(ledger, "p"), 0, Failure("server failed", "m"), failed_attempts=1)
    commit(ledger, claim(ledger, "p"), followup=("p2", PAYLOAD))
    commit(ledger, claim(ledger, "p2"))
    commit(ledger, claim(ledger, "q"))
    late = claim(ledger, "r", lease_s=0)
    commit(ledger, claim(ledger, "r"))
    commit(ledger, late)
    ledger.pace("worker", capacity=4, in_flight=0)
    ledger.pace("worker", capacity=4, in_flight=0, leaving=True)
    prefix = ledger.keys.run.removesuffix("run")
    left = {k.decode().removeprefix(prefix) for k in ledger.client.keys(f"{prefix}*")}
    assert left == {
        "run", "datasets", "done", "completions", "errors", "endpoints", "settled",
    }  # fmt: skip
    assert money(ledger)[1:] == (0, 0, 0)
    assert ledger.snapshot().in_flight == 0


def test_outcomes_of_nothing_are_nothing(ledger: Ledger) -> None:
    """An empty question is no error."""
    assert ledger.outcomes([]) == []
