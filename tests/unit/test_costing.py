"""What datasets cost, and the budgets that a sum of money is enough for."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.run_config import Dataset, Providers, Run, RunConfig, Sampling
from producer.answer_sizes import measured, measured_price
from producer.cost_plan import CostPlan, Money
from producer.costing import (
    DIGITS,
    Price,
    Work,
    cost_of,
    equal_budgets,
    listed_prices,
    total,
    weighted_budgets,
)
from producer.endpoints import Endpoint
from producer.routing import shares

INCEPTRON = Price("mix", 0.44e-6, 2.20e-6)


def work(name: str = "B1", **fields) -> Work:
    return Work(
        **{
            "dataset": name,
            "prompts": 20_000,
            "budget_tokens": 10_000_000,
            "prompt_tokens": 400.0,
            "answer_tokens": 1_000.0,
        }
        | fields
    )


def endpoint(tag: str, prompt: float, completion: float) -> Endpoint:
    return Endpoint(tag, tag.title(), "int4", prompt * 1e-6, completion * 1e-6)


def config(tmp_path, **providers) -> RunConfig:
    dataset = Dataset(name="B1", path="b1.jsonl")
    return RunConfig(
        tmp_path / "run.toml", Run("r", "a/b"), Sampling(), Providers(**providers), [dataset]
    )


def test_six_datasets_of_ten_million_tokens_do_not_fit_100_dollars() -> None:
    """132 USD are output alone; with the input counted about 7 M tokens each fit."""
    works = [work(f"B{n}") for n in range(1, 7)]
    cost = total(works, INCEPTRON)
    assert cost.output_usd == pytest.approx(132)
    assert cost.input_usd == pytest.approx(10.56)
    budgets = equal_budgets(works, INCEPTRON, 100)
    assert set(budgets.values()) == {7_010_000}
    assert weighted_budgets(works, INCEPTRON, 100) == budgets
    plan = CostPlan(works, {}, [INCEPTRON], Money(100, None), [])
    assert not plan.fits
    assert plan.proposals() == {"equal": budgets}, "of equal budgets, the weighted are the same"


def test_prompts_that_run_out_cost_what_they_can_give() -> None:
    """A budget beyond the prompts buys nothing, and leaves its money to the others."""
    small, large = work("small", prompts=1_000), work("large")
    assert cost_of(small, INCEPTRON).output_tokens == 1_000_000
    budgets = equal_budgets([small, large], INCEPTRON, cost_of(large, INCEPTRON).total_usd)
    assert budgets["small"] == 10_000_000, "it gets all it can use: its budget stays"
    assert budgets["large"] == pytest.approx(9_000_000, rel=0.01)


def test_what_is_bought_is_not_paid_again() -> None:
    """The rest of the budget, for the prompts that have no answer yet."""
    begun = work(bought_tokens=9_000_000)
    assert cost_of(begun, INCEPTRON).output_tokens == 1_000_000
    assert cost_of(work(bought_tokens=11_000_000), INCEPTRON).total_usd == 0


def test_no_budget_means_every_prompt() -> None:
    """Without a budget the prompts are the limit."""
    assert cost_of(work(budget_tokens=0), INCEPTRON).requests == 20_000


def test_equal_budgets_give_nobody_more_than_it_wants() -> None:
    """A dataset with a small budget keeps it; weighted, all shrink alike."""
    works = [work("B1", budget_tokens=1_000_000), work("B2")]
    half = total(works, INCEPTRON).total_usd / 2
    assert equal_budgets(works, INCEPTRON, half) == {"B1": 1_000_000, "B2": 4_500_000}
    assert weighted_budgets(works, INCEPTRON, half) == {"B1": 500_000, "B2": 5_000_000}


def test_without_money_nothing_is_proposed() -> None:
    """An empty account buys no token; `no budget` is not what it says."""
    assert equal_budgets([work()], INCEPTRON, 0) == {"B1": 0}
    assert equal_budgets([work(budget_tokens=0)], INCEPTRON, 0) == {"B1": 0}
    assert equal_budgets([work(budget_tokens=0)], INCEPTRON, 1000) == {"B1": None}


WORKS = st.lists(
    st.builds(
        Work,
        dataset=st.uuids().map(str),
        prompts=st.integers(0, 10**6),
        budget_tokens=st.integers(0, 10**8),
        prompt_tokens=st.floats(1, 1e5),
        answer_tokens=st.floats(1, 1e5),
        bought_tokens=st.integers(0, 10**7),
    ),
    min_size=1,
    max_size=8,
)


@given(WORKS, st.floats(0, 500), st.floats(0, 1e-4), st.floats(1e-9, 1e-4))
def test_proposed_budgets_cost_at_most_the_money(works, money_usd, prompt_usd, completion_usd):
    """Whatever the sizes and prices, equal and weighted; no dataset gets more than it wants."""
    price = Price("mix", prompt_usd, completion_usd)
    for budgets in (
        equal_budgets(works, price, money_usd),
        weighted_budgets(works, price, money_usd),
    ):
        cost = sum(cost_of(one, price, budgets[one.dataset]).total_usd for one in works)
        assert cost <= money_usd * (1 + 1e-6)
        assert all((budgets[one.dataset] or 0) <= one.wanted_tokens for one in works)


@given(WORKS, st.floats(0.01, 500))
def test_an_equal_budget_is_the_largest_but_for_its_rounding(works, money_usd):
    """One step of its last digit more, for all who want more, would not fit."""
    price = Price("mix", 1e-6, 1e-5)
    if total(works, price).total_usd <= money_usd:
        return
    budgets = equal_budgets(works, price, money_usd)
    cost = 0.0
    for one in works:
        budget = budgets[one.dataset]
        step = 10 ** max(0, len(str(budget)) - DIGITS)
        more = None if budget is None else min(one.wanted_tokens, budget + step)
        cost += cost_of(one, price, more).total_usd
    assert cost > money_usd * (1 - 1e-6)


def test_the_cheapest_endpoint_depends_on_how_much_is_input() -> None:
    """Long prompts make cheap input worth more than cheap output."""
    offers = [(endpoint("in", 0.1, 3.0), 0.5), (endpoint("out", 1.0, 2.0), 0.5)]
    short, long = work(prompt_tokens=10), work(prompt_tokens=20_000)
    cheapest, mix, dearest = listed_prices([short], offers)
    assert (cheapest.completion_usd, dearest.completion_usd) == (2.0e-6, 3.0e-6)
    assert mix.prompt_usd == pytest.approx(0.55e-6)
    cheapest, _, dearest = listed_prices([long], offers)
    assert (cheapest.completion_usd, dearest.completion_usd) == (3.0e-6, 2.0e-6)


def test_the_mix_follows_the_routing(tmp_path) -> None:
    """The first gets all but the share for the others; spread, by inverse square of price."""
    offers = [endpoint("b", 0.4, 4.0), endpoint("a", 0.4, 2.0), endpoint("c", 0.4, 4.0)]
    ranked = {e.tag: part for e, part in shares(config(tmp_path, share_for_others=0.1), offers)}
    assert ranked == pytest.approx({"a": 0.9, "b": 0.05, "c": 0.05})
    for routing in ("spread", "openrouter"):
        spread = {e.tag: part for e, part in shares(config(tmp_path, routing=routing), offers)}
        assert spread == pytest.approx({"a": 4 / 6, "b": 1 / 6, "c": 1 / 6})


def test_a_single_endpoint_gets_everything(tmp_path) -> None:
    """There are no others to have a share."""
    only = endpoint("a", 0.4, 2.0)
    assert shares(config(tmp_path), [only]) == [(only, 1.0)]


def test_the_smaller_of_cap_and_balance_is_what_is_left() -> None:
    """Of the cap, what was spent is gone; the balance is what is left already."""
    assert Money(100, 30, 10).left_usd == 30
    assert Money(100, 300, 10).left_usd == 90
    assert Money(100, None, 120).left_usd == 0
    assert Money(None, None).left_usd is None
    assert CostPlan([work()], {}, [INCEPTRON], Money(None, None), []).fits


def answers(**columns) -> pa.Table:
    return pa.table(
        {
            "dataset": ["B1", "B1", "B2"],
            "prompt_tokens": [100, 300, 50],
            "completion_tokens": [1000, 3000, None],
            "cost_usd": [0.002, 0.006, None],
        }
        | columns
    )


def test_answers_are_measured_by_dataset() -> None:
    """Mean and spread; a row without its counts is left out."""
    found = measured(answers())
    assert set(found.datasets) == {"B1"}
    sizes = found.datasets["B1"]
    assert (sizes.answers, sizes.prompt_tokens, sizes.completion_tokens) == (2, 200, 2000)
    assert (sizes.prompt_spread, sizes.completion_spread) == (100, 1000)
    assert found.overall == sizes
    assert measured(answers().slice(0, 0)).overall is None


def test_measured_prices_give_what_was_billed() -> None:
    """Half of the listed price was paid: both prices are halved."""
    sizes = measured(answers()).overall
    assert sizes is not None
    listed = 400 * 0.44e-6 + 4000 * 2.2e-6
    price = measured_price(sizes, INCEPTRON)
    assert price is not None
    assert price.completion_usd / price.prompt_usd == pytest.approx(5)
    assert 400 * price.prompt_usd + 4000 * price.completion_usd == pytest.approx(0.008)
    assert price.prompt_usd == pytest.approx(0.44e-6 * 0.008 / listed)
    free = measured(answers(cost_usd=[None, 0.0, None])).overall
    assert measured_price(free, INCEPTRON) is None
