"""The ledger: the one authority on what is done, claimed and spent.

Every transition is one Lua script (`fleet/lua/`), so it happens whole or not at all. A live
prompt is in exactly one state:

    feed           a new prompt is put on the ledger               → queued
    claim          a worker takes it for one request      queued   → claimed
    commit         its completion is recorded             claimed  → done
    release        its worker gives it back               claimed  → waiting
    fail           it goes to the dead letters            claimed  → failed
    reroute        its next attempt goes elsewhere        claimed  → claimed
    yield_         its worker has no slot for it          queued   → waiting
    resend         the feeder sends it (again)            waiting  → queued
                   (a claim that expired is released first)
    retry          its user wants it tried again          failed   → waiting
    cancel         its dataset is stopped                 waiting, queued → forgotten

A claim refused for want of room, of money or of an endpoint puts the prompt back to waiting.
Money is in nano-USD inside and in USD outside. Knows nothing of HTTP, files or Celery.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import redis

from fleet.keys import Keys
from fleet.snapshot import Snapshot, read_snapshot
from fleet.transitions import Claim, Endpoint, Failure, Fed, Pace, Purchase, Refusal, Route

#: The threshold of a limit that was never throttled.
MOST_IN_FLIGHT = 1_000_000


class Ledger:
    """One run's ledger. Safe to share between threads.

    Methods raise `redis.RedisError` when Redis is away; see `patient`.
    """

    def __init__(self, client: redis.Redis, run: str) -> None:
        self.client = client
        self.keys = Keys(run)
        folder = resources.files("fleet") / "lua"
        common = "".join(
            (folder / name).read_text(encoding="utf-8")
            for name in ("_common.lua", "_endpoints.lua")
        )
        self._scripts = {
            entry.name.removesuffix(".lua"): client.register_script(
                common + entry.read_text(encoding="utf-8")
            )
            for entry in folder.iterdir()
            if entry.name.endswith(".lua") and not entry.name.startswith("_")
        }

    def _run(self, script: str, *args: Any) -> Any:
        return self._scripts[script](keys=self.keys.all, args=args)

    # The run as a whole

    def open(self, config: dict[str, Any], numbers: dict[str, int | float]) -> None:
        """Write what the workers need to know (`config`), and the scripts (`numbers`).

        Called each time a feeder starts, so that a raised cap or budget takes effect.
        """
        fields: dict[Any, Any] = {name: repr(value) for name, value in numbers.items()}
        fields |= {"cap_reached": 0, "funds_short": 0}
        self.client.hset(self.keys.run, mapping=fields)
        self.set_config(config)
        self._run("reopen")

    def set_routes(self, routes: Sequence[Route], off: Mapping[str, str] = {}) -> None:
        """Tell which endpoints may be asked, in their rank, and of others why they may not.

        What is known of an endpoint (its limit, its circuit, its counts) stays.
        """
        fields: dict[Any, Any] = {f"{tag}|off": reason for tag, reason in off.items()}
        for route in routes:
            told = {"provider": route.provider, "weight": route.weight, "off": ""}
            told |= {"prompt_price": route.prompt_nusd, "completion_price": route.completion_nusd}
            told |= {"request_price": route.request_nusd}
            fields |= {f"{route.tag}|{name}": value for name, value in told.items()}
        with self.client.pipeline(transaction=True) as pipe:
            pipe.hset(self.keys.run, "routes", "\n".join(route.tag for route in routes))
            if fields:
                pipe.hset(self.keys.endpoints, mapping=fields)
            for route in routes:
                pipe.hsetnx(self.keys.endpoints, f"{route.tag}|limit", max(1, route.start))
                pipe.hsetnx(self.keys.endpoints, f"{route.tag}|threshold", MOST_IN_FLIGHT)
            pipe.execute()

    def set_balance(self, balance: dict[str, Any], funds_nusd: int | None) -> None:
        """Keep what the account was seen to have, and the most that the run may come to with it.

        Args:
            balance: for `status`: `remaining_usd`, `at` and the like.
            funds_nusd: spent and left together; None: the account does not say.
        """
        fields: dict[Any, Any] = {"balance": json.dumps(balance), "funds_short": 0}
        if funds_nusd is not None:
            fields["funds"] = funds_nusd
        with self.client.pipeline(transaction=True) as pipe:
            pipe.hset(self.keys.run, mapping=fields)
            if funds_nusd is None:
                pipe.hdel(self.keys.run, "funds")
            pipe.execute()

    def keep_usage_before(self, usage_usd: float) -> None:
        """Keep what the key was billed before this run; the first to say it is believed."""
        self.client.hsetnx(self.keys.run, "usage_before", repr(usage_usd))

    def usage_before(self) -> float | None:
        """What the key was billed before this run; None: nobody looked."""
        kept = self.client.hget(self.keys.run, "usage_before")
        return None if kept is None else float(kept)

    def set_config(self, config: dict[str, Any]) -> None:
        """Write what the workers need to know; they look every few seconds."""
        self.client.hset(self.keys.run, "config", json.dumps(config))

    def config(self) -> dict[str, Any] | None:
        """What `set_config` wrote, or None when no feeder has opened this run."""
        raw = self.client.hget(self.keys.run, "config")
        return json.loads(raw) if raw else None

    def open_dataset(self, name: str, prompts: int, budget_tokens: int, prior_tokens: int) -> None:
        """Register a dataset; a cancelled one stays so."""
        fields = {"prompts": prompts, "budget": budget_tokens, "prior": prior_tokens, "ended": 0}
        self.client.hset(self.keys.datasets, mapping={f"{name}|{k}": v for k, v in fields.items()})

    def cursor(self, dataset: str) -> int:
        """Rows of the frozen dataset that have been fed."""
        return int(self.client.hget(self.keys.datasets, f"{dataset}|cursor") or 0)

    def pause(
        self, kind: str, reason: str, until: float | None = None, *, anew: bool = False
    ) -> bool:
        """Stop claims and sending; False when it is paused already: the first reason stays.

        Args:
            anew: this reason takes the place of another.
            until: seconds since the epoch before which it is no use to go on, if that is known.
        """
        state = {"kind": kind, "reason": reason, "at": time.time(), "until": until}
        if anew:
            return bool(self.client.hset(self.keys.run, "paused", json.dumps(state)))
        return bool(self.client.hsetnx(self.keys.run, "paused", json.dumps(state)))

    def paused(self) -> dict[str, Any] | None:
        """`kind`, `reason`, `at` and `until` (seconds since the epoch) of the pause, or None."""
        raw = self.client.hget(self.keys.run, "paused")
        return json.loads(raw) if raw else None

    def resume(self, *, trying: bool = False) -> bool:
        """Go on, with every circuit closed; False when the run was not paused.

        Args:
            trying: one request at each endpoint goes first, and the rest when it succeeds.
        """
        self._run("close", int(trying))
        return bool(self.client.hdel(self.keys.run, "paused"))

    def cancel(self, dataset: str) -> int:
        """Stop a dataset for good; returns how many prompts were taken off the ledger."""
        return int(self._run("cancel", dataset))

    def memory_bytes(self) -> tuple[int, int]:
        """What Redis uses, and the most that it may use; 0: no limit."""
        info: Any = self.client.info("memory")
        return info["used_memory"], info.get("maxmemory") or 0

    def snapshot(self) -> Snapshot:
        """All counters at one moment."""
        return read_snapshot(self.client, self.keys)

    # The feeder's side

    def feed(self, dataset: str, prompts: Sequence[Fed], cursor: int | None) -> list[bool]:
        """Put new prompts on the ledger, as long as the dataset has room.

        Args:
            cursor: the row after all of them; None leaves the dataset's cursor.

        Returns: for each prompt that there was room for, whether to send a task message.
        """
        args: list[Any] = [dataset, "" if cursor is None else cursor]
        for prompt in prompts:
            args += [prompt.prompt_id, prompt.payload, prompt.row_after]
        return [bool(ok) for ok in self._run("feed", *args)]

    def are_done(self, prompt_ids: Sequence[str]) -> list[bool]:
        """Whether each prompt has its completion."""
        if not prompt_ids:
            return []
        found = self.client.hmget(self.keys.done, list(prompt_ids))
        return [fence is not None for fence in found]

    def resend(
        self, most: int, lost_after_s: float, most_lost: int = 1000, only: Sequence[str] = ()
    ) -> list[str]:
        """Ids whose task message is due (again).

        Args:
            lost_after_s: 0: no message counts as lost.
            only: no others than these; empty: all.
        """
        reply = self._run("resend", most, int(lost_after_s * 1000), most_lost, *only)
        return [prompt_id.decode() for prompt_id in reply]

    def count_verified(self, tag: str, why: str) -> None:
        """An endpoint's answer was tokenised; `why` no sample can be made of it, or ""."""
        self._run("verified", tag, why)

    def forget_verified(self, tags: Iterable[str]) -> None:
        """What is expected of answers has changed, or somebody wants them looked at anew."""
        fields = [f"{t}|{name}" for t in tags for name in ("verified", "unusable", "unusable_last")]
        if fields:
            self.client.hdel(self.keys.endpoints, *fields)

    def bury(self, worker: str) -> int:
        """Let the claims of a dead worker expire now; `worker` is the beginning of its name.

        Only for who knows it to be dead: a worker that merely lost touch still pays.
        """
        return int(self._run("bury", worker))

    def live(self) -> dict[str, int]:
        """Unfinished prompts on the ledger, by dataset."""
        reply = self._run("live")
        return {reply[i].decode(): int(reply[i + 1]) for i in range(0, len(reply), 2)}

    # The worker's side

    def claim(
        self, prompt_id: str, worker: str, lease_s: float, nonce: str = ""
    ) -> Claim | Refusal:
        """Take a prompt for one request, with tokens and money reserved for it.

        Called again with the same `nonce`, when the reply was lost, it gives the same claim.
        """
        reply = self._run("claim", prompt_id, worker, int(lease_s * 1000), nonce)
        if reply[0] != b"ok":
            return Refusal(reply[0].decode(), int(reply[1]) / 1000)
        _, fence, payload, attempts, reserved, dataset, *endpoint = reply
        return Claim(
            prompt_id,
            fence.decode(),
            dataset.decode(),
            payload,
            int(attempts),
            int(reserved),
            _endpoint(*endpoint),
        )

    def reroute(
        self, claim: Claim, failure: Failure | None, lease_s: float, *, now: bool
    ) -> Claim | Refusal:
        """After a failed attempt (None: it was told before), take the next under the same claim.

        Args:
            now: go on at once, at another endpoint; False: only tell the failure.

        Returns: the claim with its next endpoint, or why there is none (`lost`: the claim is
        not this worker's any more).
        """
        failure = failure or Failure("")
        reply = self._run(
            "reroute",
            claim.prompt_id,
            claim.fence,
            claim.hop,
            int(lease_s * 1000),
            failure.verdict,
            int(failure.retry_after_s * 1000),
            failure.endpoint,
            failure.kind,
            failure.message,
            int(now),
        )
        if reply[0] != b"ok":
            return Refusal(reply[0].decode(), int(reply[1]) / 1000)
        _, reserved, *endpoint = reply
        hop = claim.hop + 1
        return replace(claim, reserved_nusd=int(reserved), endpoint=_endpoint(*endpoint), hop=hop)

    def commit(
        self,
        claim: Claim,
        event: bytes,
        body: bytes,
        purchase: Purchase,
        followup: tuple[str, bytes] | None = None,
    ) -> str:
        """Record a completion: `committed`, `duplicate` (the first stays) or `repeated`."""
        next_id, next_payload = followup or ("", b"")
        record = claim.dataset.encode() + b"\n" + next_payload if next_id else b""
        reply = self._run(
            "commit",
            claim.prompt_id,
            claim.fence,
            claim.dataset,
            purchase.spent_nusd or 0,
            purchase.prompt_tokens,
            purchase.completion_tokens,
            int(purchase.truncated),
            purchase.endpoint,
            int(purchase.latency_s * 1000),
            event,
            body,
            next_id,
            record,
            int(purchase.spent_nusd is None),
        )
        return str(reply.decode())

    def release(
        self, claim: Claim, delay_s: float, failure: Failure | None = None, failed_attempts: int = 0
    ) -> None:
        """Give a claimed prompt back, to be sent again after `delay_s`."""
        told = _told(failure or Failure(""))
        self._run(
            "release", claim.prompt_id, claim.fence, int(delay_s * 1000), failed_attempts, *told
        )

    def fail(
        self, claim: Claim, failure: Failure, attempts: int, followups: Iterable[str] = ()
    ) -> None:
        """Move a claimed prompt, and the turns that would follow it, to the dead letters."""
        letter: dict[str, Any] = {
            "dataset": claim.dataset,
            "kind": failure.kind,
            "reason": failure.message,
            "attempts": attempts,
            "at": time.time(),
            "payload": claim.payload.decode(),
        }
        orphan = letter | {"kind": "parent failed", "reason": f"turn {claim.prompt_id} failed"}
        orphan |= {"attempts": 0, "payload": None}
        self._run(
            "fail",
            claim.prompt_id,
            claim.fence,
            claim.dataset,
            json.dumps(letter),
            *_told(failure),
            json.dumps(orphan),
            *followups,
        )

    def yield_(self, prompt_id: str, delay_s: float) -> None:
        """Send a prompt back unclaimed: this worker has no slot for it."""
        self._run("yield", prompt_id, int(delay_s * 1000))

    def pace(
        self,
        worker: str,
        *,
        capacity: int,
        in_flight: int,
        requests: int = 0,
        leaving: bool = False,
    ) -> Pace:
        """This worker's share of the limit; also its heartbeat.

        Args:
            requests: how many it has ended since it began.
        """
        share, limit, workers, breaker = self._run(
            "pace", worker, capacity, in_flight, int(leaving), requests
        )
        return Pace(int(share), int(limit), int(workers), bool(breaker))

    # Dead letters

    def failures(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every prompt in the dead letters, with its failure."""
        for prompt_id, failure in self.client.hscan_iter(self.keys.failures, count=1000):
            yield prompt_id.decode(), json.loads(failure)

    def retry(self, failures: Iterable[tuple[str, dict[str, Any]]]) -> int:
        """Send failed prompts again; returns how many were taken out of the dead letters."""
        batches: dict[str, list[Any]] = {}
        for prompt_id, failure in failures:
            batches.setdefault(failure["dataset"], []).extend([prompt_id, failure["payload"] or ""])
        return sum(
            int(self._run("retry", dataset, *args[start : start + 1000]))
            for dataset, args in batches.items()
            for start in range(0, len(args), 1000)
        )

    def outcomes(self, prompt_ids: Sequence[str]) -> list[str]:
        """`done`, `failed`, `live` (under way) or `open` (none of these), one per id."""
        if not prompt_ids:
            return []
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hmget(self.keys.done, prompt_ids)
            pipe.hmget(self.keys.failures, prompt_ids)
            pipe.hmget(self.keys.prompts, prompt_ids)
            rows = pipe.execute()
        names = ("done", "failed", "live")
        return [
            next((name for name, hit in zip(names, hits, strict=True) if hit), "open")
            for hits in zip(*rows, strict=True)
        ]


def _endpoint(tag: bytes, provider: bytes, *prices: bytes) -> Endpoint:
    return Endpoint(tag.decode(), provider.decode(), *map(float, prices))


def _told(failure: Failure) -> list[Any]:
    """A failure as the scripts take it."""
    return [
        failure.spent_nusd,
        int(failure.presumed),
        failure.verdict,
        int(failure.retry_after_s * 1000),
        failure.endpoint,
        failure.kind,
        failure.message,
        *failure.reject,
    ]
