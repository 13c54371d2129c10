"""All counters of a run at one moment, for the feeder, `status` and the live view."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import redis

from fleet.endpoint_counts import EndpointCounts, endpoint_counts
from fleet.keys import Keys
from fleet.transitions import NANO


@dataclass(frozen=True)
class DatasetCounts:
    """One dataset. Tokens are completion tokens unless the name says otherwise."""

    name: str
    prompts: int
    done: int
    failed: int
    in_flight: int
    #: Rows of the frozen file that were fed.
    cursor: int
    cancelled: bool
    budget_tokens: int
    tokens: int
    prompt_tokens: int
    truncated: int
    spent_usd: float
    #: Running mean size of a completion, with the prior while there are few.
    mean_tokens: float
    #: The budget has no room for one more answer.
    ended: bool

    @property
    def room_tokens(self) -> float:
        """Tokens of the budget that are neither bought nor expected."""
        if self.budget_tokens == 0:
            return float("inf")
        return self.budget_tokens - self.tokens - self.in_flight * self.mean_tokens


@dataclass(frozen=True)
class Snapshot:
    """One run."""

    datasets: list[DatasetCounts]
    #: `kind`, `reason`, `at`, or None.
    paused: dict[str, Any] | None
    spent_usd: float
    #: Held for what is in flight.
    reserved_usd: float
    #: Presumed spent: requests whose answer never came.
    unconfirmed_usd: float
    #: The same at the most that they may have cost: what the cap holds.
    unconfirmed_most_usd: float
    cap_usd: float
    cap_reached: bool
    waiting: int
    #: Of these, the ones that back off.
    delayed: int
    queued: int
    in_flight: int
    #: Prompts on the ledger that are not finished.
    live: int
    #: Completions not yet on disk.
    backlog: int
    limit: int
    workers: int
    #: The account as it was last looked at: `remaining_usd`, `usd_per_s`, `at`; or None.
    balance: dict[str, Any] | None
    #: What the account has left is less than one more answer may cost.
    funds_short: bool
    duplicates: int
    expired: int
    rejected: int
    #: Failed attempts by kind, and the last message of each.
    errors: dict[str, int] = field(default_factory=dict)
    last_errors: dict[str, str] = field(default_factory=dict)
    endpoints: list[EndpointCounts] = field(default_factory=list)

    @property
    def breaker_open(self) -> bool:
        """Nothing succeeds: the circuit of every endpoint that may be asked is open."""
        allowed = [e for e in self.endpoints if e.allowed]
        return bool(allowed) and all(e.circuit_open for e in allowed)

    @property
    def done(self) -> int:
        return sum(d.done for d in self.datasets)

    @property
    def failed(self) -> int:
        return sum(d.failed for d in self.datasets)

    @property
    def tokens(self) -> int:
        return sum(d.tokens for d in self.datasets)


def read_snapshot(client: redis.Redis, keys: Keys) -> Snapshot:
    """Read every counter in one round trip."""
    with client.pipeline(transaction=True) as pipe:
        for key in (keys.run, keys.datasets, keys.errors, keys.endpoints, keys.workers):
            pipe.hgetall(key)
        pipe.zcard(keys.waiting)
        pipe.zcount(keys.waiting, time.time() * 1000, "+inf")
        pipe.zcard(keys.queued)
        pipe.hlen(keys.prompts)
        pipe.xlen(keys.completions)
        (
            run,
            datasets,
            errors,
            endpoints,
            workers,
            waiting,
            delayed,
            queued,
            live,
            backlog,
        ) = pipe.execute()
    numbers = {k.decode(): v for k, v in run.items()}

    def usd(name: str) -> float:
        return float(numbers.get(name, 0)) / NANO

    error_text = {k.decode(): v for k, v in errors.items()}
    return Snapshot(
        datasets=_datasets(datasets),
        paused=json.loads(numbers["paused"]) if "paused" in numbers else None,
        spent_usd=usd("spent"),
        reserved_usd=usd("reserved"),
        unconfirmed_usd=usd("unconfirmed"),
        unconfirmed_most_usd=usd("unconfirmed_most"),
        cap_usd=usd("cap"),
        cap_reached=bool(int(numbers.get("cap_reached", 0))),
        waiting=waiting,
        delayed=delayed,
        queued=queued,
        in_flight=int(numbers.get("in_flight", 0)),
        live=live,
        backlog=backlog,
        limit=int(numbers.get("limit", 0)),
        workers=sum(_alive(heartbeat) for heartbeat in workers.values()),
        balance=json.loads(numbers["balance"]) if "balance" in numbers else None,
        funds_short=bool(int(numbers.get("funds_short", 0))),
        duplicates=int(numbers.get("duplicates", 0)),
        expired=int(numbers.get("expired", 0)),
        rejected=int(numbers.get("rejected", 0)),
        errors={k: int(v) for k, v in error_text.items() if not k.startswith("last:")},
        last_errors={
            k.removeprefix("last:"): v.decode(errors="replace")
            for k, v in error_text.items()
            if k.startswith("last:")
        },
        endpoints=endpoint_counts(
            {k.decode(): v.decode(errors="replace") for k, v in endpoints.items()},
            numbers.get("routes", b"").decode().split("\n"),
        ),
    )


#: A worker that has been silent for longer is not there; it reports twice a second.
SILENT_S = 30.0


def _alive(heartbeat: bytes) -> bool:
    return time.time() - int(heartbeat.split(b"|")[0]) / 1000 < SILENT_S


def _grouped(fields: dict[bytes, bytes]) -> dict[str, dict[str, int]]:
    """`name|counter` → value, as name → counter → value."""
    groups: dict[str, dict[str, int]] = {}
    for key, value in fields.items():
        name, _, counter = key.decode().rpartition("|")
        groups.setdefault(name, {})[counter] = int(value)
    return groups


#: As in `lua/_common.lua`: the prior counts as this many answers.
PRIOR_N = 4


def _datasets(fields: dict[bytes, bytes]) -> list[DatasetCounts]:
    found = []
    for name, c in sorted(_grouped(fields).items()):
        mean = (c.get("tokens", 0) + PRIOR_N * c.get("prior", 0)) / (c.get("n", 0) + PRIOR_N)
        found.append(
            DatasetCounts(
                name=name,
                prompts=c.get("prompts", 0),
                done=c.get("done", 0),
                failed=c.get("failed", 0),
                in_flight=c.get("in_flight", 0),
                cursor=c.get("cursor", 0),
                cancelled=bool(c.get("cancelled", 0)),
                budget_tokens=c.get("budget", 0),
                tokens=c.get("tokens", 0),
                prompt_tokens=c.get("prompt_tokens", 0),
                truncated=c.get("truncated", 0),
                spent_usd=c.get("spent", 0) / NANO,
                mean_tokens=mean,
                ended=bool(c.get("ended", 0)),
            )
        )
    return found
