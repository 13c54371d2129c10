"""Who guesses: an EAGLE-3 draft, or the text itself.

H   hidden size    V   target's vocabulary    n   heads    d   size of a head
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_stage.draft.model import Draft

#: Picks a token by its logits, [V] -> id and the distribution it came from ([V], or None: greedy).
Pick = Callable[[Tensor], tuple[int, Tensor | None]]


@dataclass(frozen=True)
class Guess:
    """One token, and the distribution that it was drawn from; None: it was certain."""

    token: int
    q: Tensor | None = None  # [V]


class Proposer(ABC):
    """Guesses how a sequence goes on."""

    @abstractmethod
    def begin(self) -> None:
        """A new sequence."""

    @abstractmethod
    def propose(self, ids: Sequence[int], aux: Tensor, count: int, pick: Pick) -> list[Guess]:
        """The next tokens.

        Args:
            ids: the sequence so far; the target has seen all but the last.
            aux: the target's states of what it has seen since the last call, [T, 3H].
        """


class DraftProposer(Proposer):
    """A chain of the draft's guesses. Its keys of accepted tokens are always made of the target's
    own states; those of a chain are dropped behind it."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft.eval()
        self.begin()

    def begin(self) -> None:
        self._keys: Tensor | None = None  # [n, L, d]
        self._values: Tensor | None = None
        self._length = 0

    @torch.no_grad()
    def propose(self, ids: Sequence[int], aux: Tensor, count: int, pick: Pick) -> list[Guess]:
        draft = self._draft
        hidden = draft.combine(aux.to(draft.fc.weight))
        tokens = ids[self._length + 1 : self._length + 1 + len(aux)]
        out = self._run(hidden, tokens)[-1:]  # [1, H]
        true_length, guesses = self._length, list[Guess]()
        while True:
            guesses.append(self._guess(out, pick))
            if len(guesses) == count:
                break
            out = self._run(out, [guesses[-1].token])
        self._cut(true_length)
        return guesses

    def _guess(self, out: Tensor, pick: Pick) -> Guess:
        draft = self._draft
        small = draft.logits(out)[0].float()  # [D]
        logits = small.new_full((len(draft.t2d),), -torch.inf)
        logits[draft.vocabulary] = small
        return Guess(*pick(logits))

    def _run(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor(tokens, device=hidden.device)
        positions = torch.arange(self._length, self._length + len(ids), device=hidden.device)
        out = self._draft.run(hidden, ids, positions, self._attend)
        self._length += len(ids)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._keys is not None and self._values is not None:
            k, v = torch.cat([self._keys, k], dim=1), torch.cat([self._values, v], dim=1)
        self._keys, self._values = k, v
        new, all_ = q.shape[1], k.shape[1]
        mask = torch.ones(new, all_, dtype=torch.bool, device=q.device).tril(all_ - new)
        return scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]

    def _cut(self, length: int) -> None:
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[:, :length], self._values[:, :length]
        self._length = length


class NgramProposer(Proposer):
    """What followed the last tokens when they stood there before: the baseline that needs no
    training (prompt lookup decoding)."""

    LONGEST = 3

    def begin(self) -> None:
        """It keeps nothing."""

    def propose(self, ids: Sequence[int], aux: Tensor, count: int, pick: Pick) -> list[Guess]:
        for size in range(min(self.LONGEST, len(ids) - 1), 0, -1):
            tail = list(ids[-size:])
            for at in range(len(ids) - size - 1, -1, -1):
                if list(ids[at : at + size]) == tail:
                    return [Guess(token) for token in ids[at + size : at + size + count]]
        return []
