"""What datasets cost at a price, and the largest budgets that the money is enough for.

In: `Work` (a dataset's prompts, sizes and budget) and `Price`s. Out: `Cost`s and budgets. Pure.
Invariants: a cost is linear in requests and tokens, and grows with the budget, so that the
largest budget that fits is found by halving; proposed budgets never cost more than the money.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from producer.endpoints import Endpoint

HALVINGS = 100
#: Budgets are proposed to so many significant digits, rounded down.
DIGITS = 3
#: For the rounding of floats.
SLACK = 1 + 1e-9

#: What a dataset gets of its budget, for a part between 0 and 1.
Ask = Callable[["Work", float], float]
#: By dataset. None: no budget, every prompt; 0: nothing.
Budgets = Mapping[str, int | None]


@dataclass(frozen=True)
class Price:
    """US dollars per token, and per request."""

    name: str
    prompt_usd: float
    completion_usd: float
    request_usd: float = 0.0


@dataclass(frozen=True)
class Work:
    """A dataset, as money sees it."""

    dataset: str
    #: Prompts that have no answer yet.
    prompts: int
    #: Completion tokens to buy in all; 0 is off.
    budget_tokens: int
    #: Mean tokens of a request and of an answer.
    prompt_tokens: float
    answer_tokens: float
    #: Completion tokens bought so far.
    bought_tokens: int = 0

    @property
    def reach_tokens(self) -> float:
        """Completion tokens when every prompt is answered."""
        return self.bought_tokens + self.prompts * self.answer_tokens

    @property
    def wanted_tokens(self) -> float:
        """The budget, or all that there is to answer."""
        return self.budget_tokens or self.reach_tokens


@dataclass(frozen=True)
class Cost:
    """What is still to be bought, and for how much."""

    requests: float
    input_tokens: float
    output_tokens: float
    input_usd: float
    output_usd: float
    request_usd: float

    @property
    def total_usd(self) -> float:
        return self.input_usd + self.output_usd + self.request_usd

    def __add__(self, other: "Cost") -> "Cost":
        mine, theirs = vars(self), vars(other)
        return Cost(**{name: mine[name] + theirs[name] for name in mine})


NOTHING = Cost(0, 0, 0, 0, 0, 0)


def cost_of(work: Work, price: Price, budget_tokens: float | None = None) -> Cost:
    """The cost to bring a dataset to a budget; None: to the run file's."""
    budget = work.wanted_tokens if budget_tokens is None else budget_tokens
    output = max(0.0, min(budget, work.reach_tokens) - work.bought_tokens)
    requests = output / work.answer_tokens
    tokens = requests * work.prompt_tokens
    return Cost(
        requests=requests,
        input_tokens=tokens,
        output_tokens=output,
        input_usd=tokens * price.prompt_usd,
        output_usd=output * price.completion_usd,
        request_usd=requests * price.request_usd,
    )


def total(works: Sequence[Work], price: Price) -> Cost:
    """The cost of all datasets."""
    return sum((cost_of(work, price) for work in works), NOTHING)


def listed_prices(works: Sequence[Work], shares: Sequence[tuple[Endpoint, float]]) -> list[Price]:
    """Cheapest, mix and dearest: of one endpoint alone, and of each by its share of requests.

    Which is cheapest depends on how much of the work is input.
    """
    offers = [Price(e.tag, e.prompt_usd, e.completion_usd, e.request_usd) for e, _ in shares]
    ranked = sorted(offers, key=lambda offer: total(works, offer).total_usd)
    mix = Price(
        "mix",
        sum(e.prompt_usd * share for e, share in shares),
        sum(e.completion_usd * share for e, share in shares),
        sum(e.request_usd * share for e, share in shares),
    )
    return [_named("cheapest", ranked[0]), mix, _named("dearest", ranked[-1])]


def _named(name: str, offer: Price) -> Price:
    return Price(name, offer.prompt_usd, offer.completion_usd, offer.request_usd)


def equal_budgets(works: Sequence[Work], price: Price, money_usd: float) -> Budgets:
    """The largest budget that every dataset can have; none gets more than it wants."""
    most = max(work.wanted_tokens for work in works)
    return _largest(works, price, money_usd, lambda work, part: min(most * part, _want(work)))


def weighted_budgets(works: Sequence[Work], price: Price, money_usd: float) -> Budgets:
    """The largest part of its budget that every dataset can have."""
    return _largest(works, price, money_usd, lambda work, part: _want(work) * part)


def _want(work: Work) -> float:
    """Budget beyond what the prompts can give costs nothing and gives nothing."""
    return min(work.wanted_tokens, work.reach_tokens)


def _largest(works: Sequence[Work], price: Price, money_usd: float, ask: Ask) -> Budgets:
    """Budgets for the largest part, from 0 to 1, that the money is enough for."""
    low, high = 0.0, 1.0
    if _costs(works, price, ask, high) <= money_usd * SLACK:
        low = high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _costs(works, price, ask, middle) <= money_usd:
            low = middle
        else:
            high = middle
    return {work.dataset: _proposed(work, ask(work, low)) for work in works}


def _proposed(work: Work, tokens: float) -> int | None:
    """One that gets all it can use keeps the run file's budget, or goes on without one."""
    if tokens * SLACK >= _want(work):
        return work.budget_tokens or None
    return _rounded(tokens)


def _costs(works: Sequence[Work], price: Price, ask: Ask, part: float) -> float:
    return sum(cost_of(work, price, ask(work, part)).total_usd for work in works)


def _rounded(tokens: float) -> int:
    """Down, to a number that a person would write."""
    whole = math.floor(tokens * SLACK)
    step = int("1" + "0" * max(0, len(str(whole)) - DIGITS))
    return whole // step * step
