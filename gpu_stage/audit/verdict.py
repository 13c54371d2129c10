"""From sums to a verdict, at any time and for any number of providers.

In: sums over a provider's tokens. Out: z, an interval for the drift, a verdict. Pure.

One looks at an audit again and again while a run goes on, so the boundary holds at all times at
once: for a sum S of martingale differences with variance V, normal-mixture boundary of Robbins
(1970), as in Howard et al., "Time-uniform, nonparametric, nonasymptotic confidence sequences",
2021, eq. 14:

    P(there is a time with |S| >= sqrt((V + ρ) log((V + ρ) / (ρ α²)))) <= α

exact for normal differences, and here asymptotically, as for any central limit. α is divided by the
number of endpoints that are judged (Bonferroni).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

Verdict = Literal["passed", "failed", "undecided"]

#: Chance that the drift of any faithful endpoint of a run is ever taken for another model's.
ALPHA = 0.05
#: ρ of the boundary, in nats². It is tightest near V = 10 ρ, here a few thousand tokens: what is
#: far off shows early, and at a hundred times as many tokens it costs a tenth of the width.
MIXTURE = 500.0
#: A drift that is no proof, in nats a token: what rounding, and ids that are known by their count
#: alone, make of a faithful provider (docs/audit.md).
FLOOR = 0.01
#: Share of what an endless nucleus would put outside that rounding may put there: about a tenth of
#: it was measured.
OUTSIDE = 0.25
#: Mean gap, in nats, between stated and true log-probabilities that is no rounding; and how many it
#: takes to say so.
MOST_GAP, LEAST_STATED = 0.1, 1_000
#: Chance with which the tokens needed for a drift would show it.
POWER = 0.9


@dataclass(frozen=True)
class Evidence:
    """Sums over completion tokens; they add up."""

    samples: int = 0
    tokens: int = 0
    #: Of -log p - H, in nats.
    surprise: float = 0.0
    #: Of Var(-log p), in nats squared.
    variance: float = 0.0
    #: Tokens that the target gives no probability at all: outside the run's nucleus. They are in
    #: no other sum.
    impossible: int = 0
    #: Tokens whose log-probability the provider stated, and the sum of stated minus the target's.
    stated: int = 0
    stated_gap: float = 0.0
    #: The same without its sign.
    stated_distance: float = 0.0

    def __add__(self, other: "Evidence") -> "Evidence":
        return Evidence(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    @property
    def z(self) -> float:
        """Standard normal for a faithful provider; 0 without evidence."""
        return self.surprise / math.sqrt(self.variance) if self.variance > 0 else 0.0

    @property
    def drift(self) -> float:
        """Excess negative log-likelihood, in nats a token."""
        return self.surprise / self.tokens if self.tokens else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation of one token's surprise, in nats."""
        return math.sqrt(self.variance / self.tokens) if self.tokens else 0.0

    @property
    def gap(self) -> float:
        """Stated minus the target's log-probability, in the mean; 0 when none was stated."""
        return self.stated_gap / self.stated if self.stated else 0.0

    def half_width(self, alpha: float) -> float:
        """Half the interval for the drift, in nats a token, that holds at all times with chance
        1 - alpha."""
        return boundary(self.variance, alpha) / self.tokens if self.tokens else math.inf


def boundary(variance: float, alpha: float) -> float:
    """How far |S| strays, ever, with chance alpha at most; in nats."""
    whole = variance + MIXTURE
    return math.sqrt(whole * math.log(whole / (MIXTURE * alpha**2)))


def verdict(evidence: Evidence, alpha: float, tolerance: float, top_p: float = 1.0) -> Verdict:
    """
    Args:
        alpha: chance to fail a faithful provider for its drift, ever.
        tolerance: the drift that does not matter, in nats a token: passed means that a larger one
            is ruled out.
        top_p: of the run.
    """
    off, width = abs(evidence.drift), evidence.half_width(alpha)
    if not evidence.tokens:
        return "undecided"
    if off - width > FLOOR or evidence.impossible > most_impossible(evidence, top_p):
        return "failed"
    if evidence.stated >= LEAST_STATED and abs(evidence.gap) > MOST_GAP:
        return "failed"
    return "passed" if off + width <= tolerance else "undecided"


def most_impossible(evidence: Evidence, top_p: float) -> float:
    """Tokens outside the nucleus that another engine's rounding may explain: `OUTSIDE` of those
    that sampling without a nucleus would put there, and four standard deviations."""
    most = (evidence.tokens + evidence.impossible) * (1 - top_p) * OUTSIDE
    return most + 4 * math.sqrt(most) + 4


def tokens_to_see(drift: float, spread: float, alpha: float) -> int:
    """Tokens after which a drift is seen with chance `POWER`.

    The smallest n with n (δ - `FLOOR`) >= boundary(n σ²) + z σ √n, where z is the quantile of
    `POWER`; 0: never.

    Args:
        drift: δ, in nats a token.
        spread: σ, in nats.
    """
    quantile, above = NormalDist().inv_cdf(POWER), drift - FLOOR

    def seen(n: int) -> bool:
        return n * above >= boundary(n * spread**2, alpha) + quantile * spread * math.sqrt(n)

    if above <= 0 or spread <= 0:
        return 0
    most = 1
    while not seen(most):
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if seen(middle) else (middle, most)
    return most
