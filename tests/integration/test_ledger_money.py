"""Budgets, the cap and the balance, with a simulated fleet on a real Valkey."""

import pytest
from ledger_kit import SIZES, Fleet, Numbers, claim, commit, feed, money, open_dataset

from fleet.ledger import Ledger
from fleet.transitions import Route, nano_usd


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
        fleet.land()
        reason = fleet.fill()
    (dataset,) = ledger.snapshot().datasets
    assert reason == "budget"
    assert dataset.ended
    assert abs(dataset.tokens - budget) < 0.005 * budget, dataset.tokens


MIXES = {
    "one price": [Route("a", "A", 0, 2200)],
    "near": [Route("a", "A", 440, 2000), Route("b", "B", 440, 2200), Route("c", "C", 550, 3250)],
    "far": [Route("a", "A", 10, 100), Route("b", "B", 3000, 15000)],
}


@pytest.mark.parametrize(
    ("sizes", "mix", "slots"),
    [(sizes, mix, 300) for sizes in SIZES for mix in MIXES]
    + [("long tail", "near", 2000), ("no mean", "one price", 2000), ("two kinds", "far", 2000)],
)
def test_what_is_billed_never_exceeds_the_cap(
    ledger: Ledger, numbers: Numbers, sizes: str, mix: str, slots: int
) -> None:
    """Up to 2,000 in flight, the cap in the middle of the run, any sizes, any prices, some answers
    that are billed and never seen: at no moment is more billed than the cap."""
    dearest = max(route.completion_nusd for route in MIXES[mix])
    cap = int(slots * 8000 * dearest * 0.5)
    more = {"max_tokens": 8000, "cap": cap, "ranked": int(slots == 300), "share_for_others": 0.2}
    ledger.open({}, numbers | more)
    open_dataset(ledger, prior=4000)
    fleet = Fleet(ledger, slots, sizes, seed=slots, routes=MIXES[mix])
    reason = fleet.fill()
    landed = 0
    while fleet.flying:
        fleet.land(lost=0.02)
        landed += 1
        if landed < 2 * slots:
            reason = fleet.fill()
        assert fleet.billed <= cap
    assert reason in ("", "cap")
    counted = ledger.snapshot()
    held = counted.spent_usd + counted.unconfirmed_most_usd
    assert fleet.billed <= nano_usd(held)


@pytest.mark.parametrize("sizes", ["long tail", "two kinds"])
def test_the_cap_is_nearly_used(ledger: Ledger, numbers: Numbers, sizes: str) -> None:
    """At the end less is left than one answer may cost; a raised cap goes on."""
    cap, longest = nano_usd(1.0), 8000 * 1000
    ledger.open({}, numbers | {"max_tokens": 8000, "cap": cap})
    open_dataset(ledger, prior=4000)
    fleet = Fleet(ledger, 100, sizes)
    reason = fleet.fill()
    while fleet.flying:
        fleet.land()
        reason = fleet.fill()
    assert reason == "cap"
    spent, unconfirmed, reserved, most = money(ledger)
    assert (unconfirmed, reserved, most) == (0, 0, 0)
    assert cap - longest <= spent == fleet.billed <= cap
    assert ledger.snapshot().cap_reached
    ledger.open({}, numbers | {"max_tokens": 8000, "cap": 2 * cap})
    assert not ledger.snapshot().cap_reached
    assert fleet.fill() == ""


def test_claims_stop_before_the_accounts_money_does(ledger: Ledger, numbers: Numbers) -> None:
    """What the account was seen to have is held like the cap; when one more answer may be too
    much, that is said, and more money is taken up."""
    ledger.open({}, numbers | {"max_tokens": 8000})
    open_dataset(ledger, prior=4000)
    balance = nano_usd(0.5)
    fleet = Fleet(ledger, 100, "long tail")
    ledger.set_balance({"remaining_usd": 0.5}, balance)
    reason = fleet.fill()
    while fleet.flying:
        fleet.land()
        reason = fleet.fill()
        assert fleet.billed <= balance
    assert reason == "funds"
    snapshot = ledger.snapshot()
    assert snapshot.funds_short
    assert not snapshot.cap_reached
    assert balance - fleet.billed < 8000 * 1000
    ledger.set_balance({"remaining_usd": 1.0}, fleet.billed + nano_usd(1.0))
    assert not ledger.snapshot().funds_short
    assert fleet.fill() == ""
    ledger.set_balance({"remaining_usd": None}, None)
    for _ in range(500):
        fleet.land()
        assert fleet.fill() == "", "an account that does not say limits nothing"


def test_an_answer_of_no_tokens_and_no_prior_breaks_no_script(ledger: Ledger) -> None:
    """Sizes of 0 divide nothing by 0."""
    open_dataset(ledger, budget=10, prior=0)
    feed(ledger, "p", "q")
    commit(ledger, claim(ledger, "p"), tokens=0, spent=0)
    claim(ledger, "q")
