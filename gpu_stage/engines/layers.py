"""Which hidden states are extracted.

h[0] is the output of the embedding, h[i] the residual stream behind i decoder layers, before the
final norm (`output_hidden_states[i]` of transformers, but for the last, which is normed there).
EAGLE-3 reads three of them, low, middle and high (arXiv 2503.01840, section 3.1), and h[L] as
`last`. vLLM's configuration names them by i; SGLang's by i - 1, the layer whose output it is.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layers:
    """Indices i of h[i]."""

    #: Low, middle, high.
    aux: tuple[int, int, int]
    #: L, the number of decoder layers.
    last: int

    def __post_init__(self) -> None:
        low, middle, high = self.aux
        if not 0 <= low < middle < high <= self.last:
            raise ValueError(f"aux layers {self.aux}: three rising numbers from 0 to {self.last}")


def default_layers(layers: int) -> Layers:
    """(2, L//2, L-3), what vLLM and SGLang read when a draft names none.

    Raises:
        ValueError: the target has too few layers for three of them.
    """
    return Layers((2, layers // 2, layers - 3), layers)
