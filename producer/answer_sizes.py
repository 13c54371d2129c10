"""What answers were like: sizes and prices from the completions of a run, or nothing yet.

In: a run file's directory. Out: `Measured`. Pure but for reading the files. What is measured is
what was billed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from fleet.run_config import RunConfig
from producer.costing import Price
from producer.pilot import read_answers

#: Tokens of an answer, reasoning included, while nothing was measured. Smaller answers need more
#: requests, and with them more input: on the low side of what thinking models write.
ASSUMED_ANSWER_TOKENS = 1_000


@dataclass(frozen=True)
class Sizes:
    """The answers of a dataset, or of all."""

    answers: int
    prompt_tokens: float
    completion_tokens: float
    #: Standard deviations.
    prompt_spread: float
    completion_spread: float
    total_prompt_tokens: int
    total_completion_tokens: int
    cost_usd: float


@dataclass(frozen=True)
class Measured:
    """What a run has on disk."""

    overall: Sizes | None = None
    datasets: Mapping[str, Sizes] = field(default_factory=dict)


def read_measured(config: RunConfig) -> Measured:
    """Measure the answers of a run."""
    return measured(read_answers(config))


def measured(answers: pa.Table) -> Measured:
    """Rows without both token counts say nothing of sizes and are left out."""
    known = pc.and_(
        pc.is_valid(answers["prompt_tokens"]), pc.is_valid(answers["completion_tokens"])
    )
    rows = answers.filter(known)
    if not rows.num_rows:
        return Measured()
    names = sorted(set(rows["dataset"].to_pylist()))
    by_name = {name: _sizes(rows.filter(pc.equal(rows["dataset"], name))) for name in names}
    return Measured(_sizes(rows), by_name)


def _sizes(rows: pa.Table) -> Sizes:
    prompt, completion = rows["prompt_tokens"], rows["completion_tokens"]
    return Sizes(
        answers=rows.num_rows,
        prompt_tokens=pc.mean(prompt).as_py(),
        completion_tokens=pc.mean(completion).as_py(),
        prompt_spread=pc.stddev(prompt).as_py(),
        completion_spread=pc.stddev(completion).as_py(),
        total_prompt_tokens=pc.sum(prompt).as_py(),
        total_completion_tokens=pc.sum(completion).as_py(),
        cost_usd=pc.sum(rows["cost_usd"]).as_py() or 0.0,
    )


def measured_price(sizes: Sizes | None, mix: Price) -> Price | None:
    """What answers really cost, split into input and output as the mix's prices are.

    One sum cannot tell two prices apart; the total is what was billed.
    """
    if sizes is None or not sizes.cost_usd:
        return None
    listed = (
        sizes.total_prompt_tokens * mix.prompt_usd
        + sizes.total_completion_tokens * mix.completion_usd
        + sizes.answers * mix.request_usd
    )
    if not listed:
        return None
    ratio = sizes.cost_usd / listed
    return Price(
        "measured", mix.prompt_usd * ratio, mix.completion_usd * ratio, mix.request_usd * ratio
    )
