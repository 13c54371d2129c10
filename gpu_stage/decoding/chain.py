"""Speculative decoding with a chain of guesses (Leviathan et al., arXiv 2211.17192, algorithm 1).

The target reads all guesses at once. A guess x drawn from q is accepted with probability
min(1, p(x) / q(x)); behind the first that is not, a token is drawn from (p − q)₊, renormalised.
What comes out is distributed as the target's own text; greedily, it is the same text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpu_stage.decoding.proposers import Guess, Proposer
from gpu_stage.decoding.target import Verifier


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; temperature 0 is greedy."""

    temperature: float
    generator: torch.Generator

    def pick(self, logits: Tensor) -> tuple[int, Tensor | None]:
        """A token, and the distribution that it was drawn from."""
        if not self.temperature:
            return int(logits.argmax()), None
        p = self.p(logits)
        return self.draw(p), p

    def p(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature).softmax(-1)

    def draw(self, p: Tensor) -> int:
        return int(torch.multinomial(p.cpu(), 1, generator=self.generator))

    def chance(self) -> float:
        return float(torch.rand((), generator=self.generator))


@dataclass
class Decoded:
    """What was written, and how it came about."""

    tokens: list[int] = field(default_factory=list)
    #: Accepted guesses of each round.
    accepted: list[int] = field(default_factory=list)


def decode(
    target: Verifier,
    proposer: Proposer | None,
    prompt: Sequence[int],
    most: int,
    guesses: int,
    sampling: Sampling,
    end: frozenset[int],
) -> Decoded:
    """Write up to `most` tokens behind a prompt.

    Args:
        proposer: None: plain decoding.
        end: ids that end the text.
    """
    target.begin()
    if proposer:
        proposer.begin()
    made, ids = Decoded(), list(prompt)
    logits, aux = target.read(ids)
    ids.append(sampling.pick(logits[-1])[0])
    made.tokens.append(ids[-1])
    while len(made.tokens) < most and ids[-1] not in end:
        guessed = proposer.propose(ids, aux, guesses, sampling.pick) if proposer else []
        logits, aux = target.read([ids[-1], *(guess.token for guess in guessed)])
        new = _verified(guessed, logits, sampling)
        made.accepted.append(len(new) - 1)
        for at, token in enumerate(new):
            if token in end:
                new = new[: at + 1]
                break
        ids += new
        made.tokens += new
        target.cut(len(ids) - 1)
        aux = aux[: len(new)]
    made.tokens = made.tokens[:most]
    return made


def _verified(guessed: Sequence[Guess], logits: Tensor, sampling: Sampling) -> list[int]:
    """The accepted guesses, and one token of the target's own."""
    new: list[int] = []
    for guess, row in zip(guessed, logits, strict=False):
        if not sampling.temperature:
            if int(row.argmax()) != guess.token:
                return [*new, int(row.argmax())]
        else:
            p = sampling.p(row)
            q = torch.zeros_like(p) if guess.q is None else guess.q.to(p)
            if guess.q is None:
                q[guess.token] = 1.0
            if sampling.chance() * float(q[guess.token]) >= float(p[guess.token]):
                return [*new, sampling.draw((p - q).clamp(min=0))]
        new.append(guess.token)
    return [*new, sampling.pick(logits[len(guessed)])[0]]
