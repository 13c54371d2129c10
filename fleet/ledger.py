"""The ledger: the one authority on what is done, claimed and spent.

Every transition is one Lua script (`fleet/lua/`), so it happens whole or not at all. A live
prompt is in exactly one state:

    feed           a new prompt is put on the ledger               → queued
    claim          a worker takes it for one request      queued   → claimed
    commit         its completion is recorded             claimed  → done
    release        its worker gives it back               claimed  → waiting
    fail           it goes to the dead letters            claimed  → failed
    yield_         its worker has no slot for it          queued   → waiting
    resend         the feeder sends it (again)            waiting  → queued
                   (a claim that expired is released first)
    retry          its user wants it tried again          failed   → waiting
    cancel         its dataset is stopped                 waiting, queued → forgotten

A refused claim for want of room, money or a closed breaker puts the prompt back to waiting.
Money is in nano-USD inside and in USD outside. Knows nothing of HTTP, files or Celery.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import redis

from fleet.keys import Keys
from fleet.snapshot import NANO, Snapshot, read_snapshot


def nano_usd(usd: float | str) -> int:
    """US dollars as whole nano-USD, rounded to the nearest."""
    return round(float(usd) * NANO)


@dataclass(frozen=True)
class Fed:
    """A prompt to put on the ledger."""

    prompt_id: str
    #: JSON of a `fleet.records.Payload`.
    payload: bytes
    #: Row of the frozen dataset after it and its follow-ups.
    row_after: int


@dataclass(frozen=True)
class Claim:
    """A worker's lease on a prompt."""

    prompt_id: str
    fence: str
    dataset: str
    #: JSON object: messages, tools, turn, followups.
    payload: bytes
    #: Failed attempts before this one.
    attempts: int
    #: What is held for this request.
    reserved_nusd: int


@dataclass(frozen=True)
class Refusal:
    """Why a prompt may not be claimed now."""

    reason: str
    retry_after_s: float


@dataclass(frozen=True)
class Charge:
    """Money of one response: what it says it cost, or what is presumed when it did not come."""

    spent_nusd: int = 0
    presumed_nusd: int = 0


@dataclass(frozen=True)
class Pace:
    """The fleet's pace as one worker sees it."""

    share: int
    limit: int
    workers: int
    breaker_open: bool


class Ledger:
    """One run's ledger. Safe to share between threads.

    Methods raise `redis.RedisError` when Redis is away; see `patient`.
    """

    def __init__(self, client: redis.Redis, run: str) -> None:
        self.client = client
        self.keys = Keys(run)
        folder = resources.files("fleet") / "lua"
        common = (folder / "_common.lua").read_text(encoding="utf-8")
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
        """Write what the workers need to know: `config` as one JSON, `numbers` for the scripts.

        Called each time a feeder starts, so that a raised cap or budget takes effect.
        """
        fields: dict[Any, Any] = {name: repr(value) for name, value in numbers.items()}
        fields |= {"config": json.dumps(config), "cap_reached": 0}
        self.client.hset(self.keys.run, mapping=fields)
        self._run("reopen")

    def config(self) -> dict[str, Any] | None:
        """What `open` wrote, or None when no feeder has opened this run."""
        raw = self.client.hget(self.keys.run, "config")
        return json.loads(raw) if raw else None

    def open_dataset(self, name: str, prompts: int, budget_tokens: int, prior_tokens: int) -> None:
        """Register a dataset; a cancelled one stays so."""
        fields = {"prompts": prompts, "budget": budget_tokens, "prior": prior_tokens, "ended": 0}
        self.client.hset(self.keys.datasets, mapping={f"{name}|{k}": v for k, v in fields.items()})

    def cursor(self, dataset: str) -> int:
        """Rows of the frozen dataset that have been fed."""
        return int(self.client.hget(self.keys.datasets, f"{dataset}|cursor") or 0)

    def pause(self, kind: str, reason: str) -> bool:
        """Stop claims and sending; False when it is paused already: the first reason stays."""
        state = {"kind": kind, "reason": reason, "at": time.time()}
        return bool(self.client.hsetnx(self.keys.run, "paused", json.dumps(state)))

    def paused(self) -> dict[str, Any] | None:
        """`kind`, `reason` and `at` (seconds since the epoch) of the pause, or None."""
        raw = self.client.hget(self.keys.run, "paused")
        return json.loads(raw) if raw else None

    def resume(self) -> bool:
        """Go on, with the breaker closed; False when the run was not paused."""
        self.client.hset(self.keys.run, mapping={"breaker_probe": 0, "failures_in_a_row": 0})
        return bool(self.client.hdel(self.keys.run, "paused"))

    def cancel(self, dataset: str) -> int:
        """Stop a dataset for good; returns how many prompts were taken off the ledger."""
        return int(self._run("cancel", dataset))

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

    def resend(self, most: int, lost_after_s: float, most_lost: int = 1000) -> list[str]:
        """Ids whose task message is due (again); `lost_after_s` = 0: no message counts as lost."""
        return [i.decode() for i in self._run("resend", most, int(lost_after_s * 1000), most_lost)]

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
        _, fence, payload, attempts, reserved, dataset = reply
        return Claim(
            prompt_id, fence.decode(), dataset.decode(), payload, int(attempts), int(reserved)
        )

    def commit(
        self,
        claim: Claim,
        event: bytes,
        body: bytes,
        *,
        spent_nusd: int,
        prompt_tokens: int,
        completion_tokens: int,
        truncated: bool,
        provider: str,
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
            spent_nusd,
            prompt_tokens,
            completion_tokens,
            int(truncated),
            provider,
            event,
            body,
            next_id,
            record,
        )
        return str(reply.decode())

    def release(
        self,
        claim: Claim,
        delay_s: float,
        *,
        failed_attempts: int = 0,
        charge: Charge = Charge(),
        kind: str = "",
        message: str = "",
        reject: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Give a claimed prompt back, to be sent again after `delay_s`."""
        event, body = reject or (b"", b"")
        self._run(
            "release",
            claim.prompt_id,
            claim.fence,
            int(delay_s * 1000),
            failed_attempts,
            charge.spent_nusd,
            charge.presumed_nusd,
            kind,
            message,
            event,
            body,
        )

    def fail(
        self,
        claim: Claim,
        *,
        kind: str,
        reason: str,
        attempts: int,
        followups: Iterable[str] = (),
        charge: Charge = Charge(),
        reject: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Move a claimed prompt, and the turns that would follow it, to the dead letters."""
        failure = {"dataset": claim.dataset, "kind": kind, "reason": reason, "attempts": attempts}
        failure |= {"at": time.time(), "payload": claim.payload.decode()}
        orphan = failure | {"kind": "parent failed", "reason": f"turn {claim.prompt_id} failed"}
        orphan |= {"attempts": 0, "payload": None}
        event, body = reject or (b"", b"")
        self._run(
            "fail",
            claim.prompt_id,
            claim.fence,
            claim.dataset,
            charge.spent_nusd,
            charge.presumed_nusd,
            kind,
            reason,
            json.dumps(failure),
            event,
            body,
            json.dumps(orphan),
            *followups,
        )

    def count_error(self, kind: str, message: str) -> None:
        """Count a failed attempt whose claim goes on."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hincrby(self.keys.errors, kind, 1)
            pipe.hset(self.keys.errors, f"last:{kind}", message)
            pipe.execute()

    def yield_(self, prompt_id: str, delay_s: float) -> None:
        """Send a prompt back unclaimed: this worker has no slot for it."""
        self._run("yield", prompt_id, int(delay_s * 1000))

    def pace(
        self,
        worker: str,
        *,
        capacity: int,
        in_flight: int,
        successes: int = 0,
        throttles: int = 0,
        failures: int = 0,
        leaving: bool = False,
    ) -> Pace:
        """Report what happened since the last call; returns this worker's share of the limit."""
        share, limit, workers, breaker = self._run(
            "pace", worker, capacity, in_flight, successes, throttles, failures, int(leaving)
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
