"""The provider audit: whether the target itself could have written what a provider sent.

For a faithful provider the sum over tokens of (-log p(x_t) - H(p_t)), under the target's
distribution p_t, is a sum of martingale differences, with mean 0 and the variance that p_t gives.
So z = sum(-log p - H) / sqrt(sum Var) is standard normal: another temperature, other weights or
another model drive it away from 0, the further the more tokens there are. In: sums of a provider's
completions. Out: z and a verdict. Pure.
"""

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "undecided"]

#: Fewer tokens say too little.
LEAST_TOKENS = 10_000
#: Beyond it chance is no explanation: two-sided, 1 in 300,000 a provider.
FAILED_Z = 4.5


@dataclass(frozen=True)
class Evidence:
    """Sums over the completions of one provider; they add up."""

    tokens: int = 0
    #: Of -log p - H, in nats.
    surprise: float = 0.0
    #: Of Var(-log p), in nats squared.
    variance: float = 0.0
    #: Tokens that the target gives no probability at all: outside the run's nucleus.
    impossible: int = 0

    def __add__(self, other: "Evidence") -> "Evidence":
        return Evidence(
            self.tokens + other.tokens,
            self.surprise + other.surprise,
            self.variance + other.variance,
            self.impossible + other.impossible,
        )

    @property
    def z(self) -> float:
        """Standard normal for a faithful provider; 0 without evidence."""
        return self.surprise / math.sqrt(self.variance) if self.variance > 0 else 0.0

    @property
    def verdict(self) -> Verdict:
        """Failed beyond `FAILED_Z`, whatever the number of tokens; passed with enough of them."""
        if abs(self.z) > FAILED_Z:
            return "failed"
        return "passed" if self.tokens >= LEAST_TOKENS else "undecided"
