"""How likely the target finds the tokens of a sample, for the provider audit.

In: logits, the tokens that follow, the run's temperature and top-p. Out: for each token its
log-probability, and the entropy and variance of what might have stood there. Float32; nats.

    T   tokens    V   vocabulary
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Logits are made for so many tokens at a time: with a vocabulary of 163,840 they take 336 MB.
CHUNK_TOKENS = 512


@dataclass(frozen=True)
class Likelihood:
    """Of each of T tokens, in nats."""

    log_p: torch.Tensor  # [T]
    entropy: torch.Tensor  # [T]
    #: Of -log p of what might have stood there.
    variance: torch.Tensor  # [T]


def likelihood(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    last: torch.Tensor,  # [T, H]
    following: torch.Tensor,  # [T] int64
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Likelihood:
    """Of the tokens that follow each position.

    Args:
        logits_of: `Engine.logits`.
        temperature: 0 is greedy, which has no distribution to hold anything against.

    Raises:
        ValueError: temperature is not above 0, or top_p not in (0, 1].
    """
    if temperature <= 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature {temperature} and top_p {top_p}: above 0; above 0, at most 1"
        )
    parts = [
        _of_chunk(logits_of(chunk) / temperature, tokens, top_p)
        for chunk, tokens in zip(
            last.split(CHUNK_TOKENS), following.split(CHUNK_TOKENS), strict=True
        )
    ]
    return Likelihood(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _of_chunk(
    logits: torch.Tensor, tokens: torch.Tensor, top_p: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    log_p = torch.log_softmax(_nucleus(logits, top_p), dim=-1)  # [T, V]
    p = log_p.exp()
    # 0 log 0 is 0, and what the nucleus leaves out is -inf.
    surprise = torch.where(p > 0, -log_p, 0.0)
    entropy = (p * surprise).sum(-1)
    variance = (p * surprise.square()).sum(-1) - entropy.square()
    chosen = log_p.gather(-1, tokens[:, None].to(log_p.device))[:, 0]
    return chosen.cpu(), entropy.cpu(), variance.clamp_min(0.0).cpu()


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Logits of the smallest set of tokens whose probability reaches top_p; the rest is -inf.

    Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020.
    """
    if top_p >= 1:
        return logits
    ranked, order = logits.sort(dim=-1, descending=True)
    p = ranked.softmax(dim=-1)
    outside = p.cumsum(-1) - p >= top_p  # the token that reaches top_p stays in
    return logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
