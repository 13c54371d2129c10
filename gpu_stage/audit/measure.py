"""Evidence about one sample from its last states, as any engine gives them.

T   tokens of a sample    C   tokens of its completion    H   hidden size
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fleet.errors import ConfigError
from fleet.run_config import RunConfig
from gpu_stage.audit.verdict import Evidence
from gpu_stage.engines.likelihood import likelihood

#: Fields of a request that change what is sampled and are not modelled, and values that do not.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "top_k": (0, -1, None),
    "min_p": (0, None),
    "top_a": (0, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": ({}, None),
    "response_format": ({"type": "text"}, None),
    "structured_outputs": (False, None),
    "tool_choice": ("auto", "none", None),
}

#: Head and final norm over last states: [T, H] -> [T, V], float32.
LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """How the run asked for its tokens to be sampled."""

    temperature: float
    top_p: float


def rule_of(config: RunConfig) -> Rule:
    """
    Raises:
        ConfigError: the run samples in a way that leaves nothing to hold its tokens against.
    """
    sampling = config.sampling
    if sampling.temperature <= 0:
        raise ConfigError(
            f"{config.path}: sampling.temperature = 0: a greedy answer has no distribution to be "
            "held against; such a run cannot be audited this way"
        )
    for field, neutral in NEUTRAL.items():
        if sampling.extra.get(field) not in neutral:
            raise ConfigError(
                f"{config.path}: sampling.extra.{field} changes what is sampled in a way that the "
                "audit does not model; such a run cannot be audited this way"
            )
    return Rule(sampling.temperature, sampling.top_p)


def evidence_of(
    logits_of: LogitsOf,
    last: torch.Tensor,  # [T, H]
    ids: torch.Tensor,  # [T] int64
    spans: Sequence[tuple[int, int]],
    rule: Rule,
    stated: Sequence[float] = (),
) -> Evidence:
    """What the target thinks of the tokens in `spans`.

    Args:
        logits_of: the target's head, `Engine.logits` or `Head.logits`.
        last: h[L] of the sample, before the final norm.
        spans: half-open ranges of `ids` that the provider's model wrote.
        stated: log-probabilities that the provider gave with them, at temperature 1 as engines
            report them, from the first token of the completion on; empty: none.
    """
    # Nothing stands before the first token that it could be held against.
    written = [torch.arange(max(start, 1), end) for start, end in spans if end > max(start, 1)]
    if not written:
        return Evidence(samples=1)
    places = torch.cat(written)
    before, tokens = last[places - 1], ids[places]
    found = likelihood(logits_of, before, tokens, temperature=rule.temperature, top_p=rule.top_p)
    possible = found.log_p.isfinite()
    surprise = (-found.log_p - found.entropy)[possible]
    gaps = _gaps(logits_of, before, tokens, rule, found.log_p, stated)
    return Evidence(
        samples=1,
        tokens=int(possible.sum()),
        surprise=float(surprise.sum(dtype=torch.float64)),
        variance=float(found.variance[possible].sum(dtype=torch.float64)),
        impossible=int((~possible).sum()),
        stated=len(gaps),
        stated_gap=float(gaps.sum()),
        stated_distance=float(gaps.abs().sum()),
    )


def _gaps(
    logits_of: LogitsOf,
    before: torch.Tensor,
    tokens: torch.Tensor,
    rule: Rule,
    log_p: torch.Tensor,
    stated: Sequence[float],
) -> torch.Tensor:
    """Stated minus the target's log-probability, of the tokens that have one."""
    count = min(len(stated), len(tokens))
    if not count:
        return torch.empty(0)
    if (rule.temperature, rule.top_p) != (1.0, 1.0):
        log_p = likelihood(logits_of, before[:count], tokens[:count]).log_p
    return torch.tensor(stated[:count], dtype=torch.float64) - log_p[:count].cpu()
