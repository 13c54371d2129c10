"""What the tests of the ledger share: its calls with the usual arguments, what is on it, and a
simulated fleet on a clock of its own.
"""

import heapq
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fleet.ledger import Ledger
from fleet.transitions import Claim, Failure, Fed, Purchase, Refusal, Route

PAYLOAD = b'{"messages":[]}'
EVENT = json.dumps({"kind": "completion", "prompt_id": "p"}).encode()
LEASE_S = 600.0
Numbers = dict[str, int | float]


def open_dataset(ledger: Ledger, name: str = "D", budget: int = 0, prior: int = 100) -> None:
    ledger.open_dataset(name, prompts=1000, budget_tokens=budget, prior_tokens=prior)


def feed(ledger: Ledger, *ids: str, dataset: str = "D") -> list[str]:
    fed = [Fed(i, PAYLOAD, 0) for i in ids]
    accepted = ledger.feed(dataset, fed, None)
    return [i for i, ok in zip(ids, accepted, strict=False) if ok]


def claim(ledger: Ledger, prompt_id: str = "p", lease_s: float = LEASE_S) -> Claim:
    got = ledger.claim(prompt_id, "worker", lease_s)
    assert isinstance(got, Claim), got
    return got


def refused(ledger: Ledger, prompt_id: str = "p") -> str:
    got = ledger.claim(prompt_id, "worker", LEASE_S)
    assert isinstance(got, Refusal), got
    return got.reason


def commit(
    ledger: Ledger,
    held: Claim,
    spent: int = 1000,
    tokens: int = 10,
    followup: tuple[str, bytes] | None = None,
    **more: Any,
) -> str:
    event = json.dumps({"kind": "completion", "prompt_id": held.prompt_id}).encode()
    fields = {"prompt_tokens": 5, "truncated": False, "endpoint": held.endpoint.tag} | more
    purchase = Purchase(spent_nusd=spent, completion_tokens=tokens, **fields)
    return ledger.commit(held, event, b"body", purchase, followup)


def fail(ledger: Ledger, held: Claim, followups: Sequence[str] = (), **more: Any) -> None:
    ledger.fail(held, Failure("bad request", "no", **more), 1, followups)


def state(ledger: Ledger, prompt_id: str = "p") -> str:
    """The one state that a prompt is in."""
    client, keys = ledger.client, ledger.keys
    places = {
        "waiting": client.zscore(keys.waiting, prompt_id) is not None,
        "queued": client.zscore(keys.queued, prompt_id) is not None,
        "claimed": client.zscore(keys.claims, prompt_id) is not None,
        "done": client.hexists(keys.done, prompt_id),
        "failed": client.hexists(keys.failures, prompt_id),
    }
    (place,) = [name for name, there in places.items() if there] or ["forgotten"]
    live = place in ("waiting", "queued", "claimed")
    assert client.hexists(keys.prompts, prompt_id) is live
    return place


def money(ledger: Ledger) -> tuple[int, int, int, int]:
    """Spent, unconfirmed, reserved, and the most that what is reserved for may cost."""
    names = ("spent", "unconfirmed", "reserved", "reserved_most")
    return tuple(int(v or 0) for v in ledger.client.hmget(ledger.keys.run, names))  # type: ignore[return-value]


def dump(ledger: Ledger) -> dict[str, Any]:
    """All that is on the ledger."""
    client, found = ledger.client, {}
    for key in ledger.keys.all:
        kind = client.type(key)
        if kind == b"hash":
            found[key] = client.hgetall(key)
        elif kind == b"zset":
            found[key] = client.zrange(key, 0, -1, withscores=True)
        elif kind == b"stream":
            found[key] = client.xrange(key)
    return found


def past(ledger: Ledger, key: str, field: str) -> None:
    """Let an interval be over: its time was long ago."""
    ledger.client.hset(key, field, 1)


class ClockedLedger(Ledger):
    """A ledger whose scripts read the test's clock instead of the server's."""

    def __init__(self, of: Ledger) -> None:
        super().__init__(of.client, of.keys.run_name)
        self._clock = f"{of.keys.run_name}-clock"
        told = f"redis.call('HMGET', '{self._clock}', 's', 'us')"
        for name, script in self._scripts.items():
            text = str(script.script).replace("redis.call('TIME')", told)
            self._scripts[name] = self.client.register_script(text)
        self.tell(0)

    def tell(self, now_ms: float) -> None:
        ms = 1_800_000_000_000 + int(now_ms)
        clock = {"s": ms // 1000, "us": ms % 1000 * 1000}
        self.client.hset(self._clock, mapping=clock)
        self.client.expire(self._clock, 600)


_GROWING = itertools.count()
SIZES: dict[str, Callable[[random.Random], float]] = {
    "long tail": lambda r: r.lognormvariate(5.5, 1.0),
    "memoryless": lambda r: r.expovariate(1 / 800),
    "no mean": lambda r: 40 * r.paretovariate(0.9),
    "ever longer": lambda r: 20 + next(_GROWING) % 8000,
    "two kinds": lambda r: 300 if r.random() < 0.8 else r.lognormvariate(8, 0.4),
}


class Fleet:
    """A simulated fleet: an answer takes the time of its tokens, so long ones come last."""

    def __init__(
        self,
        ledger: Ledger,
        slots: int,
        sizes: str,
        seed: int = 1,
        routes: Sequence[Route] = (Route("p/int4", "P", 0, 1000),),
    ) -> None:
        self.ledger = ClockedLedger(ledger)
        self.random = random.Random(seed)
        self.flying: list[tuple[float, str, Claim, int]] = []
        self.now_ms = 0.0
        #: What the providers bill, whether the answer came or not; in nano-USD.
        self.billed = 0
        self._sizes = SIZES[sizes]
        self._slots = slots
        self._fed = 0
        self._ready: list[str] = []
        ledger.client.delete(ledger.keys.endpoints)
        ledger.set_routes([replace(route, start=slots) for route in routes])

    def fill(self) -> str:
        """Claim until every slot is taken, or the ledger refuses; returns its reason."""
        while len(self.flying) < self._slots:
            if not self._ready:
                self._ready = self.ledger.resend(50, 0)
            if not self._ready:
                ids = [f"p{self._fed + i}" for i in range(50)]
                self._ready = feed(self.ledger, *ids)
                self._fed += len(self._ready)
            if not self._ready:
                return "budget"
            self.random.shuffle(self._ready)
            prompt_id = self._ready.pop()
            got = self.ledger.claim(prompt_id, "w", 10 * LEASE_S)
            if isinstance(got, Refusal):
                return got.reason
            size = min(int(self._sizes(self.random)) + 1, 8000)
            ends_ms = self.now_ms + 20 * size * self.random.uniform(0.8, 1.2)
            heapq.heappush(self.flying, (ends_ms, prompt_id, got, size))
        return ""

    def land(self, lost: float = 0.0) -> None:
        """The next answer ends; with probability `lost` its worker never sees it."""
        self.now_ms, _, held, size = heapq.heappop(self.flying)
        self.ledger.tell(self.now_ms)
        prompt_tokens = self.random.randint(1, len(held.payload))
        at = held.endpoint
        cost = round(prompt_tokens * at.prompt_nusd + size * at.completion_nusd)
        self.billed += cost
        if self.random.random() < lost:
            self.ledger.release(held, 0, Failure("deadline passed", "m", "failed", presumed=True))
        else:
            assert commit(self.ledger, held, spent=cost, tokens=size) == "committed"
