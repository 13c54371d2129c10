"""The limits on requests in flight and the workers' shares, on a real Valkey.

No test sleeps: an interval is over when its beginning is set into the past.
"""

import itertools
from typing import Any

import pytest
from ledger_kit import Numbers, claim, commit, feed, open_dataset, past

from fleet.ledger import Ledger
from fleet.transitions import Failure, Route

serial = itertools.count()


def pace(ledger: Ledger, worker: str = "w", capacity: int = 100, **more: Any) -> Any:
    return ledger.pace(worker, capacity=capacity, in_flight=0, **more)


def answers(ledger: Ledger, good: int = 0, throttled: int = 0) -> None:
    """So many requests come back, one after the other."""
    open_dataset(ledger)
    for n in range(good + throttled):
        prompt_id = f"p{next(serial)}"
        feed(ledger, prompt_id)
        held = claim(ledger, prompt_id)
        if n < good:
            commit(ledger, held)
        else:
            ledger.release(held, 60, Failure("in flight budget", "m", "account"))


def over(ledger: Ledger, field: str, tag: str = "p/int4") -> None:
    past(ledger, ledger.keys.endpoints, f"{tag}|{field}")


def test_the_limit_falls_once_a_burst_and_climbs_back(ledger: Ledger) -> None:
    """Additive increase, multiplicative decrease: a burst of 429s is one event."""
    assert pace(ledger).limit == 8
    answers(ledger, throttled=4)
    over(ledger, "window_at")
    assert pace(ledger).limit == 4
    answers(ledger, throttled=4)
    assert pace(ledger).limit == 4, "the window is not over"
    over(ledger, "window_at")
    assert pace(ledger).limit == 2
    answers(ledger, good=6)
    over(ledger, "grown_at")
    assert 2 < pace(ledger).limit < 8, "above what was throttled it grows by steps"


def test_a_few_throttled_answers_among_many_cost_little(ledger: Ledger) -> None:
    """The limit falls in proportion to the share of answers that were throttled."""
    pace(ledger)
    answers(ledger, good=57)
    assert pace(ledger).limit == 64
    over(ledger, "window_at")
    pace(ledger)  # a new window begins
    answers(ledger, good=38, throttled=2)
    assert pace(ledger).limit == 64, "not before the window is over"
    over(ledger, "window_at")
    assert pace(ledger).limit == int(64 * (1 - 0.5 * 0.05))


def test_the_limit_doubles_a_second_while_it_is_used_and_nothing_is_throttled(
    ledger: Ledger,
) -> None:
    """Long answers do not make the slow start slow; a limit that nobody uses does not grow."""
    assert pace(ledger).limit == 8
    over(ledger, "grown_at")
    assert pace(ledger).limit == 8
    open_dataset(ledger)
    for prompt_id in feed(ledger, *(f"p{i}" for i in range(8))):
        claim(ledger, prompt_id)
    over(ledger, "grown_at")
    assert pace(ledger).limit == 16


def test_the_limit_never_falls_below_one(ledger: Ledger) -> None:
    """However long the throttling, one request probes."""
    for _ in range(8):
        answers(ledger, throttled=1)
        over(ledger, "window_at")
        over(ledger, "cool_until")
        limit = pace(ledger).limit
    assert limit == 1
    assert pace(ledger).share == 1


def test_the_limit_doubles_a_round_and_stops_at_the_ceiling(
    ledger: Ledger, numbers: Numbers
) -> None:
    """Slow start: each answer adds one, up to `concurrency`."""
    for expected in (16, 32, 64, 64):
        answers(ledger, good=expected // 2)
        assert pace(ledger).limit == expected
    ledger.open({}, numbers | {"concurrency": 10})
    assert pace(ledger).limit == 10


def test_the_fleets_limit_is_the_sum_of_its_endpoints_limits(
    ledger: Ledger, numbers: Numbers
) -> None:
    """At most `concurrency`; and what is still in flight at an endpoint that is over its limit
    takes no slot from the others."""
    ledger.set_routes([Route("p/int4", "P", 1, 1), Route("q/int4", "Q", 1, 1, start=5)])
    assert pace(ledger).limit == 13
    ledger.client.hset(ledger.keys.endpoints, "p/int4|in_flight", 30)
    assert pace(ledger).limit == 35
    ledger.open({}, numbers | {"concurrency": 9})
    assert pace(ledger).limit == 9


@pytest.mark.parametrize("start", [1, 3, 7, 64])
@pytest.mark.parametrize("capacities", [[1], [50] * 4, [1, 2, 3, 40], [10] * 11])
def test_the_shares_sum_to_the_limit(ledger: Ledger, start: int, capacities: list[int]) -> None:
    """Whatever the workers and their capacities; in the proportion of the capacities."""
    ledger.set_routes([Route("q/int4", "Q", 1, 1, start=start)])
    workers = {f"w{i}": capacity for i, capacity in enumerate(capacities)}
    for _ in range(3):  # again if the turn changed in between
        for name, capacity in workers.items():
            pace(ledger, name, capacity)
        shares = [pace(ledger, name, capacity).share for name, capacity in workers.items()]
        if sum(shares) == start:
            break
    assert sum(shares) == start
    for capacity, share in zip(capacities, shares, strict=True):
        assert abs(share - start * capacity / sum(capacities)) <= 1


def test_a_worker_that_leaves_or_dies_gives_up_its_share(ledger: Ledger) -> None:
    """By signing off at once, by silence after 30 s."""
    for name in ("a", "b", "c"):
        pace(ledger, name)
    assert pace(ledger, "a", leaving=True).share == 0
    ledger.client.hset(ledger.keys.workers, "b", "1|100|0")
    last = pace(ledger, "c")
    assert (last.share, last.workers) == (8, 1)
