"""Hidden states in one byte a value: e4m3 with a scale for each token and layer.

In: states. Out: values and scales, and how far off they are. A state's largest value becomes 448,
the largest that e4m3 has (Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1). The
residual stream has a few channels that are a thousand times larger than the rest; the exponent of
e4m3 covers 2^-9 … 448, so the rest keeps its three bits.

    T   tokens    S   states of a token (3 aux, last)    H   hidden size
"""

import torch

LARGEST = 448.0
DTYPE = torch.float8_e4m3fn


def to_float8(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [T, S, H] e4m3 and scales [T, S] float32; a state of zeros has scale 1."""
    exact = states.float()
    scale = exact.abs().amax(-1) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    return (exact / scale[..., None]).to(DTYPE), scale


def from_float8(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """States again, bf16 [T, S, H]."""
    return (values.float() * scale[..., None]).to(torch.bfloat16)


class Error:
    """Relative error of what was stored, for each of the S states, over any number of tokens."""

    def __init__(self) -> None:
        self._off = self._all = torch.zeros(())

    def add(self, states: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> None:
        exact = states.float()
        off = from_float8(values, scale).float() - exact
        self._off = self._off + off.square().sum((0, 2), dtype=torch.float64)
        self._all = self._all + exact.square().sum((0, 2), dtype=torch.float64)

    def relative(self) -> list[float]:
        """√(Σ(stored − x)² / Σx²) of each state."""
        made: list[float] = (self._off / self._all.clamp_min(1e-30)).sqrt().tolist()
        return made
