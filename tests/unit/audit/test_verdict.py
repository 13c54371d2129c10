"""Sums to verdicts: who is faithful passes, at every look; who is not is seen in time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_stage.audit.verdict import (
    ALPHA,
    FLOOR,
    Evidence,
    boundary,
    tokens_to_see,
    verdict,
)

TOLERANCE = 0.05
SUMS = st.builds(
    Evidence,
    *[st.integers(0, 10**6)] * 2,
    st.floats(-1e5, 1e5),
    st.floats(0, 1e6),
    *[st.integers(0, 100)] * 2,
    *[st.floats(-10, 10)] * 2,
)


def distributions(count: int, rng: np.random.Generator) -> np.ndarray:
    """Softmaxes of 40 tokens, from nearly certain to nearly flat, as a text has them."""
    sharpness = np.exp(rng.uniform(-1, 2.5, (count, 1)))
    logits = rng.normal(size=(count, 40)) * sharpness
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def audits(count: int, looks: tuple[int, ...], *, temperature: float = 1.0) -> np.ndarray:
    """Evidence of so many audits, at each look: surprise and variance, [count, looks, 2]. Tokens
    are drawn at another temperature than the one that they are held against."""
    rng = np.random.default_rng(7)
    p = distributions(500, rng)
    served = p ** (1 / temperature)
    served /= served.sum(1, keepdims=True)
    surprise = -np.log(p)
    entropy = (p * surprise).sum(1, keepdims=True)
    variance = (p * surprise**2).sum(1) - entropy[:, 0] ** 2
    differences = surprise - entropy
    bounds = served.cumsum(1)
    made = np.empty((count, len(looks), 2))
    for one in range(count):
        place = rng.integers(0, len(p), looks[-1])
        token = (rng.random(looks[-1])[:, None] > bounds[place]).sum(1).clip(max=39)
        sums = differences[place, token].cumsum()
        spreads = variance[place].cumsum()
        made[one] = [(sums[n - 1], spreads[n - 1]) for n in looks]
    return made


def test_a_faithful_provider_passes_whenever_one_looks() -> None:
    """Of 1,000 audits at most 5 % ever fail, though each is looked at six times; nearly all pass
    in the end."""
    looks = (200, 500, 1_000, 3_000, 8_000, 12_000)
    found = audits(1_000, looks)
    verdicts = [
        [
            verdict(Evidence(1, n, *sums), ALPHA, TOLERANCE)
            for n, sums in zip(looks, one, strict=True)
        ]
        for one in found
    ]
    failed = sum("failed" in one for one in verdicts)
    assert failed <= 50
    assert sum(one[-1] == "passed" for one in verdicts) >= 950
    assert all(one[0] == "undecided" for one in verdicts)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_another_temperature_is_seen_at_once(temperature: float) -> None:
    """In each of 100 audits, after a thousand tokens."""
    found = audits(100, (1_000,), temperature=temperature)
    for ((surprise, variance),) in found:
        one = Evidence(1, 1_000, surprise, variance)
        assert verdict(one, ALPHA, TOLERANCE) == "failed"
        assert (one.z > 0) == (temperature > 1)


def test_the_tokens_that_a_drift_needs_show_it() -> None:
    """With the chance that is promised: a normal sum of that many tokens crosses the boundary."""
    drift, spread = 0.04, 1.3
    n = tokens_to_see(drift, spread, ALPHA)
    rng = np.random.default_rng(1)
    # The boundary is crossed with `FLOOR` to spare.
    sums = rng.normal(n * (drift - FLOOR), spread * math.sqrt(n), 4_000)
    seen = (np.abs(sums) >= boundary(n * spread**2, ALPHA)).mean()
    assert 0.88 < seen < 0.92
    assert tokens_to_see(drift / 2, spread, ALPHA) > 3 * n
    assert tokens_to_see(0.0, spread, ALPHA) == tokens_to_see(drift, 0.0, ALPHA) == 0


@given(SUMS, SUMS)
def test_evidence_adds_up(one: Evidence, other: Evidence) -> None:
    """Samples may be counted in any order and in any parts."""
    both = one + other
    assert both == other + one
    assert (both.tokens, both.impossible) == (
        one.tokens + other.tokens,
        one.impossible + other.impossible,
    )
    assert Evidence() + one == one


@given(st.floats(1, 1e7), st.floats(1e-4, 0.5), st.floats(1.01, 10))
def test_more_tokens_narrow_the_interval(variance: float, alpha: float, more: float) -> None:
    """And a smaller chance of error widens it."""
    tokens = round(variance) + 1
    one, many = (
        Evidence(1, tokens, 0, variance),
        Evidence(1, int(tokens * more) + 1, 0, variance * more),
    )
    assert many.half_width(alpha) < one.half_width(alpha) < one.half_width(alpha / 2)


def test_no_evidence_decides_nothing() -> None:
    """Neither does evidence that is too thin for the tolerance."""
    assert verdict(Evidence(), ALPHA, 1.0) == "undecided"
    assert Evidence().z == Evidence().drift == Evidence().spread == 0
    assert verdict(Evidence(1, 100, 0.0, 150.0), ALPHA, TOLERANCE) == "undecided"


@pytest.mark.parametrize(
    ("top_p", "rounding", "without"), [(0.95, 0.0011, 0.05), (0.8, 0.004, 0.2)]
)
def test_tokens_outside_the_nucleus_fail_a_provider(
    top_p: float, rounding: float, without: float
) -> None:
    """Not the share that another engine's rounding was measured to put there, however many tokens
    there are; half of what sampling without a nucleus puts there, from two thousand on."""
    for tokens in (100, 10_000, 1_000_000):
        few = Evidence(1, tokens, 0, tokens, impossible=round(tokens * rounding))
        assert verdict(few, ALPHA, 9.0, top_p) != "failed"
    many = Evidence(1, 2_000, 0, 2_000, impossible=round(2_000 * without / 2))
    assert verdict(many, ALPHA, 9.0, top_p) == "failed"


def test_a_drift_that_rounding_makes_is_no_proof() -> None:
    """However many tokens there are; a tenth of a nat is, with enough of them."""
    tokens = 10**8
    assert verdict(Evidence(1, tokens, 0.009 * tokens, 4.0 * tokens), ALPHA, 0.05) == "passed"
    assert verdict(Evidence(1, tokens, 0.012 * tokens, 4.0 * tokens), ALPHA, 0.05) == "failed"


def test_log_probabilities_of_other_weights_fail_a_provider() -> None:
    """Over a thousand tokens; a gap as rounding makes it does not."""
    sums = {"samples": 1, "tokens": 2_000, "variance": 9_000.0}
    off = Evidence(**sums, stated=1_500, stated_gap=450.0)
    assert verdict(off, ALPHA, 0.05) == "failed"
    assert verdict(Evidence(**sums, stated=900, stated_gap=270.0), ALPHA, 0.05) == "undecided"
    assert verdict(Evidence(**sums, stated=1_500, stated_gap=3.0), ALPHA, 0.05) == "undecided"
