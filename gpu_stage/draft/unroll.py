"""Training-time test (arXiv 2503.01840, section 3.2): K steps of the draft on its own output.

Slot t of a sample x[0 … T−1] reads the aux states of position t and, at step k, the embedding of
x[t+1+k]; it guesses x[t+2+k], whose distribution the target's last state of position t+1+k gives.

    T   slots    H   hidden size    K   steps
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gpu_stage.draft.model import Draft, Seen, Slots


def unroll(draft: Draft, aux: Tensor, ids: Tensor, slots: Slots, steps: int) -> Iterator[Tensor]:
    """The output of each step before the final norm, [T, H]; row t is slot t.

    Slots whose next token lies in another sample compute something that nothing may use.

    Args:
        aux: [T, 3H], low to high.
        ids: [T] int64.
    """
    hidden, seen = draft.combine(aux), Seen()
    for k in range(steps):
        hidden = draft.step(hidden, torch.roll(ids, -1 - k), slots, seen)
        yield hidden
