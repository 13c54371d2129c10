"""Sums to verdicts: who is faithful passes, at every look; who is not is seen in time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_stage.audit.verdict import (
    ALPHA,
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
    sums = rng.normal(n * drift, spread * math.sqrt(n), 4_000)
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


def test_tokens_outside_the_nucleus_fail_a_provider() -> None:
    """Not one or two, which another engine's rounding makes, but a share of them."""
    assert verdict(Evidence(1, 50_000, 0, 70_000, impossible=60), ALPHA, 0.1) == "passed"
    assert verdict(Evidence(1, 50_000, 0, 70_000, impossible=200), ALPHA, 0.1) == "failed"
    assert verdict(Evidence(1, 100, 0, 140, impossible=2), ALPHA, 0.1) == "undecided"
