"""Every random decision of the emulator, as a hash of what it is about.

The same seed, the same messages and the same count of earlier requests with these
messages give the same decision, whatever else is in flight and in whatever order it
came.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from statistics import NormalDist
from typing import Literal, NamedTuple

Shape = Literal["constant", "uniform", "exponential", "lognormal"]

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NORMAL = NormalDist()
_ODDS = 1 << 64


class Dice(NamedTuple):
    """Independent numbers in [0, 1) for one request."""

    route: float
    latency: float
    size: float
    text: float


def throw(seed: int, messages_key: str, nth: int) -> Dice:
    """The dice of the nth request with these messages."""
    digest = blake2b(f"{seed}/{messages_key}/{nth}".encode(), digest_size=32).digest()
    # Size and text depend on the messages alone: asked twice, the answer is the same.
    fixed = blake2b(f"{seed}/{messages_key}".encode(), digest_size=16).digest()
    return Dice(_unit(digest[:8]), _unit(digest[8:16]), _unit(fixed[:8]), _unit(fixed[8:]))


def fires(rate: float, seed: int, index: int, messages_key: str, nth: int) -> bool:
    """Whether fault number `index` strikes the nth request with these messages."""
    if rate >= 1.0:
        return True
    text = f"fault/{seed}/{index}/{messages_key}/{nth}".encode()
    return _unit(blake2b(text, digest_size=8).digest()) < rate


def draw(shape: Shape, mean: float, spread: float, u: float) -> float:
    """The value at quantile `u` of a distribution with this mean.

    `spread` is the half width as a share of the mean (uniform) or sigma (lognormal).
    """
    if shape == "uniform":
        return mean * (1 + spread * (2 * u - 1))
    if shape == "exponential":
        return -mean * math.log1p(-u)
    if shape == "lognormal":
        z = _NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
        return mean * math.exp(spread * z - spread * spread / 2)
    return mean


def _unit(digest: bytes) -> float:
    return min(int.from_bytes(digest, "big") / _ODDS, 1 - 2**-53)
