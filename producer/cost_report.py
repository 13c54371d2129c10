"""A `CostPlan` for a person and for a program."""

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from producer.console import err, out
from producer.cost_plan import CostPlan, Money
from producer.costing import Cost, Price, Work, cost_of, total
from producer.progress import money


def show_cost_plan(plan: CostPlan) -> None:
    """Tables and the verdict to standard output, what was assumed to standard error."""
    for note in plan.notes:
        err.print(note, highlight=False, markup=False, soft_wrap=True)
    out.print(_datasets_table(plan))
    out.print(_prices_table(plan))
    for sentence in verdict(plan):
        out.print(sentence, highlight=False, markup=False, soft_wrap=True)


def plan_record(plan: CostPlan) -> dict[str, Any]:
    """All of it, as JSON."""
    return {
        "fits": plan.fits,
        "decided_by": plan.price.name,
        "total_usd": plan.total_usd,
        "money": {**asdict(plan.money), "left_usd": plan.money.left_usd},
        "datasets": [
            {
                **asdict(work),
                "measured": asdict(plan.measured[work.dataset])
                if work.dataset in plan.measured
                else None,
                "costs": {p.name: _cost_record(cost_of(work, p)) for p in plan.prices},
            }
            for work in plan.works
        ],
        "prices": [{**asdict(p), "cost": _cost_record(total(plan.works, p))} for p in plan.prices],
        "proposals": plan.proposals(),
        "notes": plan.notes,
    }


def _cost_record(cost: Cost) -> dict[str, float]:
    return {**asdict(cost), "total_usd": cost.total_usd}


def verdict(plan: CostPlan) -> list[str]:
    """Whether it fits; if not, what would."""
    left = plan.money.left_usd
    if left is None:
        return [f"{money(plan.total_usd)} expected; no cap and no balance to hold it against."]
    expected = f"{money(plan.total_usd)} expected, {money(left)} {_whose(plan.money)}"
    if plan.fits:
        return [f"It fits: {expected}."]
    sentences = [f"It does not fit: {expected}. Budgets that do, at the {plan.price.name} price:"]
    for name, budgets in plan.proposals().items():
        each = (f"{dataset} {_budget(tokens)}" for dataset, tokens in budgets.items())
        sentences.append(f"  {name}: {', '.join(each)}")
    return sentences


def _budget(tokens: int | None) -> str:
    """A 0 in the run file would be no budget at all."""
    return "all prompts" if tokens is None else f"{tokens:,}" if tokens else "nothing"


def _whose(limits: Money) -> str:
    """Which limit it is that the money left comes from."""
    if limits.balance_usd is not None and limits.left_usd == limits.balance_usd:
        return "on the account"
    bought = f", {money(limits.bought_usd)} of it spent" if limits.bought_usd else ""
    return f"left under the cap of {money(limits.cap_usd or 0)}{bought}"


def _datasets_table(plan: CostPlan) -> Table:
    """At the price that decides."""
    shown = _table(
        ["dataset"], ["requests", "in/req", "out/req", "in", "out", "in $", "out $", "total $"]
    )
    for work in plan.works:
        sizes = (f"{work.prompt_tokens:,.0f}", _answer(work, plan))
        shown.add_row(work.dataset, *_cells(cost_of(work, plan.price), sizes))
    shown.add_section()
    shown.add_row("all", *_cells(total(plan.works, plan.price), ("", "")))
    return shown


def _answer(work: Work, plan: CostPlan) -> str:
    """The mean, with its spread where it was measured."""
    sizes = plan.measured.get(work.dataset)
    return f"{work.answer_tokens:,.0f}" + (f" ±{sizes.completion_spread:,.0f}" if sizes else "")


def _cells(cost: Cost, sizes: tuple[str, str]) -> list[str]:
    return [
        f"{cost.requests:,.0f}",
        *sizes,
        _size(cost.input_tokens),
        _size(cost.output_tokens),
        _usd(cost.input_usd + cost.request_usd),
        _usd(cost.output_usd),
        _usd(cost.total_usd),
    ]


def _size(tokens: float) -> str:
    return f"{tokens / 1e6:,.2f}M" if tokens >= 1e5 else f"{tokens / 1e3:,.1f}k"


def _usd(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.4f}"


def _prices_table(plan: CostPlan) -> Table:
    shown = _table(["price"], ["$/M in", "$/M out", "in $", "out $", "total $"])
    for price in plan.prices:
        shown.add_row(*_price_cells(plan, price), style=None if price == plan.price else "dim")
    return shown


def _price_cells(plan: CostPlan, price: Price) -> list[str]:
    cost = total(plan.works, price)
    return [
        price.name,
        f"{price.prompt_usd * 1e6:.2f}",
        f"{price.completion_usd * 1e6:.2f}",
        _usd(cost.input_usd + cost.request_usd),
        _usd(cost.output_usd),
        _usd(cost.total_usd),
    ]


def _table(left: list[str], right: list[str]) -> Table:
    shown = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in left:
        shown.add_column(column, no_wrap=True)
    for column in right:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown
