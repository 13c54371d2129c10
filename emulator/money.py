"""Money as whole nano-USD (1e-9 USD), so that sums are exact.

A price of 0.44 USD per million tokens is 440 nano-USD per token; a price that is not
a whole number of nano-USD per token is refused when the configuration is read.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import NamedTuple

NANO = 10**9


class Bill(NamedTuple):
    """What one completion costs, in nano-USD."""

    prompt_nano: int
    completion_nano: int

    @property
    def total_nano(self) -> int:
        return self.prompt_nano + self.completion_nano


@cache
def nano_per_token(usd_per_million: float | str) -> int:
    """The price of one token in nano-USD; ValueError when it is not a whole number."""
    nano = Decimal(str(usd_per_million)) * 1000
    if nano < 0 or nano != nano.to_integral_value():
        raise ValueError(
            f"a price of {usd_per_million} USD per million tokens is not a whole number of "
            "nano-USD per token: use at most three decimals"
        )
    return int(nano)


def nano_of_usd(usd: float | str) -> int:
    """Nano-USD of an amount in USD, exactly as it is written in decimal."""
    return int(Decimal(str(usd)) * NANO)


def usd_text(nano: int) -> str:
    """The amount in USD as the books and published prices show it: plain decimal."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, fraction = divmod(nano, NANO)
    digits = f"{fraction:09d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def usd_json(nano: int) -> bytes:
    """The amount in USD as a JSON number, written as the service (JavaScript) writes it.

    0.00000924 stays plain; below 1e-6 the exponent form begins (4.4e-7).
    """
    if 0 < nano < 1000:
        digits = str(nano).rstrip("0")
        exponent = 9 - len(str(nano)) + 1
        mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
        return f"{mantissa}e-{exponent}".encode()
    return usd_text(nano).encode()
