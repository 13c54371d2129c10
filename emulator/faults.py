"""Which fault strikes a request: a pure decision, the same whenever it is asked.

In: the seed, the messages' key, how many requests with these messages came before, the
endpoint, the time since the faults were set. Out: the fault, or None. Faults are tried
in the order of the configuration and the first that fires acts.
"""

from __future__ import annotations

from .chance import fires
from .config import Fault


def pick(
    faults: tuple[Fault, ...],
    seed: int,
    messages_key: str,
    nth: int,
    endpoint: str,
    elapsed_s: float,
) -> Fault | None:
    """The fault that strikes the nth request (from 0) with these messages, or None."""
    for index, fault in enumerate(faults):
        if _applies(fault, nth, endpoint, elapsed_s) and fires(
            fault.rate, seed, index, messages_key, nth
        ):
            return fault
    return None


def _applies(fault: Fault, nth: int, endpoint: str, elapsed_s: float) -> bool:
    return (
        (not fault.endpoint or fault.endpoint == endpoint)
        and (not fault.attempts or nth < fault.attempts)
        and fault.from_s <= elapsed_s
        and (not fault.until_s or elapsed_s < fault.until_s)
    )
