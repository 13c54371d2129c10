"""What a run will cost, before it is bought: sizes, prices and the money there is, put together.

In: an opened run, the directory of its frozen prompts, what was measured, the balance. Out: a
`CostPlan`. It buys nothing and prints nothing. Invariant: every number that is not known is
assumed or estimated in a note that says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.run_config import Dataset, RunConfig
from producer.answer_sizes import (
    ASSUMED_ANSWER_TOKENS,
    Measured,
    Sizes,
    measured_price,
    read_measured,
)
from producer.costing import (
    SLACK,
    Budgets,
    Price,
    Work,
    equal_budgets,
    listed_prices,
    total,
    weighted_budgets,
)
from producer.opening import Opened
from producer.prompt_sizes import SAMPLE, Count, make_counter, prompt_sizes
from producer.routing import shares


@dataclass(frozen=True)
class Money:
    """US dollars. None: there is no such limit, or it is not known."""

    cap_usd: float | None
    balance_usd: float | None
    #: Of the cap, what the answers on disk have cost.
    bought_usd: float = 0.0

    @property
    def left_usd(self) -> float | None:
        """What may still be spent; None: there is no limit."""
        cap = None if self.cap_usd is None else max(0.0, self.cap_usd - self.bought_usd)
        limits = [usd for usd in (cap, self.balance_usd) if usd is not None]
        return min(limits, default=None)


@dataclass(frozen=True)
class CostPlan:
    """What is still to be bought, and whether the money is enough."""

    works: list[Work]
    #: Of each dataset that was measured.
    measured: Mapping[str, Sizes]
    prices: list[Price]
    money: Money
    notes: list[str]

    @property
    def price(self) -> Price:
        """The one that decides: what was measured, else the mix that the routing leads to."""
        return next(p for name in ("measured", "mix") for p in self.prices if p.name == name)

    @property
    def total_usd(self) -> float:
        return total(self.works, self.price).total_usd

    @property
    def fits(self) -> bool:
        left = self.money.left_usd
        return left is None or self.total_usd <= left * SLACK

    def proposals(self) -> dict[str, Budgets]:
        """Budgets that fit, by how they are shared out; empty when the run file's do."""
        left = self.money.left_usd
        if self.fits or left is None:
            return {}
        found = {"equal": equal_budgets(self.works, self.price, left)}
        if len({work.wanted_tokens for work in self.works}) > 1:
            found["weighted"] = weighted_budgets(self.works, self.price, left)
        return found


def make_plan(
    config: RunConfig,
    opened: Opened,
    directory: Path,
    balance_usd: float | None,
    from_run: Measured | None,
) -> CostPlan:
    """Put a plan together.

    Args:
        directory: where the prompts are frozen.
        from_run: what another run measured; None: nothing was asked for.
    """
    counter, bought = make_counter(config.target), read_measured(config)
    notes = [f"Prompts {counter.how}; of a dataset, about {SAMPLE:,}, evenly spread."]
    gatherer = _Gatherer(directory, counter.count, _mean_answer(config, from_run, notes), notes)
    measured = from_run.datasets if from_run else {}
    works = [
        gatherer.work(dataset, opened.rows[dataset.name], bought.datasets, measured)
        for dataset in config.datasets
    ]
    prices = listed_prices(works, shares(config, opened.endpoints))
    if from_run is not None:
        price = measured_price(from_run.overall, prices[1])
        prices += [price] if price else []
        notes += [] if price else ["That run has no costs on disk: prices are as listed."]
    spent = bought.overall.cost_usd if bought.overall else 0.0
    money = Money(config.run.cap_usd or None, balance_usd, spent)
    return CostPlan(works, measured, prices, money, notes)


def _mean_answer(config: RunConfig, from_run: Measured | None, notes: list[str]) -> float:
    """Tokens of an answer of a dataset that was not measured."""
    if from_run and from_run.overall:
        return from_run.overall.completion_tokens
    assumed = min(ASSUMED_ANSWER_TOKENS, config.sampling.max_tokens)
    notes.append(
        f"Answers assumed to have {assumed:,} tokens: `producer pilot` measures them, and"
        " `--from-run` takes what it measured."
    )
    return assumed


@dataclass(frozen=True)
class _Gatherer:
    """Makes a `Work` of each dataset; what it has to assume goes to `notes`."""

    directory: Path
    count: Count
    mean_answer_tokens: float
    notes: list[str]

    def work(
        self,
        dataset: Dataset,
        prompts: int,
        bought: Mapping[str, Sizes],
        measured: Mapping[str, Sizes],
    ) -> Work:
        have, own = bought.get(dataset.name), measured.get(dataset.name)
        if measured and own is None:
            mean = f"{self.mean_answer_tokens:,.0f} tokens"
            self._note(dataset, f"not in that run; answers taken to have its mean, {mean}")
        answer = max(1.0, own.completion_tokens if own else self.mean_answer_tokens)
        work = Work(
            dataset=dataset.name,
            prompts=max(0, prompts - (have.answers if have else 0)),
            budget_tokens=dataset.budget_tokens,
            prompt_tokens=own.prompt_tokens if own else self._counted(dataset, prompts, answer),
            answer_tokens=answer,
            bought_tokens=have.total_completion_tokens if have else 0,
        )
        if work.reach_tokens < work.budget_tokens:
            reach = f"{work.reach_tokens:,.0f} of the {work.budget_tokens:,} tokens"
            self._note(dataset, f"its {prompts:,} prompts give about {reach}")
        return work

    def _counted(self, dataset: Dataset, prompts: int, answer_tokens: float) -> float:
        """Mean tokens of a request; those for later turns hold the answers before."""
        path = self.directory / "prompts" / f"{dataset.name}.parquet"
        sizes = prompt_sizes(path, prompts, self.count)
        if sizes.not_counted:
            self._note(dataset, f"{sizes.not_counted:,} prompts are more than text, and estimated")
        if sizes.answers_before:
            self._note(dataset, "later turns hold the answers before, reasoning counted in")
        return sizes.mean_tokens + sizes.answers_before * answer_tokens

    def _note(self, dataset: Dataset, text: str) -> None:
        self.notes.append(f"{dataset.name}: {text}.")
