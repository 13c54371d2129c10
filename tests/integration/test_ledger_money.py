"""Budgets, the cap and the balance, with a simulated fleet on a real Valkey."""

import pytest
from ledger_kit import SIZES, Fleet, Numbers, claim, commit, feed, money, open_dataset

from fleet.ledger import Ledger
from fleet.transitions import nano_usd


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
