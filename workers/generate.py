"""What a worker does with one prompt: slot, claim, request, and what became of it.

In: a run and a prompt_id. Out: exactly one transition on the ledger per claim. Invariant: a
response that was received is on the ledger before its thread turns to anything else, however
long Redis is away. Knows nothing of Celery.
"""

import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import redis

from fleet.ledger import Charge, Claim, Ledger, Refusal, nano_usd
from fleet.records import Event, Payload
from fleet.settings import Settings
from workers.answers import Allowed, Answer
from workers.errors import (
    Details,
    DropPrompt,
    OutOfCredits,
    RequestError,
    ServerFailed,
    StopFleet,
)
from workers.openrouter import Client, longest_request_s
from workers.pacing import Pacer, full_jitter, patient

log = logging.getLogger(__name__)
T = TypeVar("T")

#: How long a prompt waits in a worker for a slot before it is sent elsewhere.
SLOT_WAIT_S = 20.0
#: Waits up to this are spent in the task; a longer one gives the prompt back.
SHORT_WAIT_S = 5.0
#: Waits under one claim begin before this; the last of them, and its wait for a slot, come on top.
WAITING_S = 10.0
RETRY_SLOT_WAIT_S = 10.0
#: Times `max_attempts`, while the breaker is open.
BREAKER_PATIENCE = 4
#: A claim outlasts its last request by this: all those waits, and the commit.
LEASE_MARGIN_S = WAITING_S + SHORT_WAIT_S + RETRY_SLOT_WAIT_S + 5.0


class Job(msgspec.Struct, frozen=True):
    """What a worker knows of a run: `Ledger.config()`."""

    model: str
    base_url: str
    #: Every field of the request body but the messages and the tools.
    request: dict[str, Any]
    #: Display names of the allowed providers; empty allows all.
    allowed: list[str]
    deadline_s: float
    max_attempts: int


class Generator:
    """Completes prompts of one run. One per run and worker process, shared by its threads."""

    def __init__(
        self, client: redis.Redis, run: str, settings: Settings, worker: str, capacity: int
    ) -> None:
        self.ledger = Ledger(client, run)
        self.run = run
        self.worker = worker
        self._settings = settings
        self._capacity = capacity
        self._stopping = threading.Event()
        self._configured_at = 0.0
        self._raw: dict[str, Any] | None = None
        self._configure()
        self.pacer = Pacer(self.ledger, worker, capacity, self._configure)

    def stop(self) -> None:
        """Start nothing more: prompts that wait go back, requests in flight are finished."""
        self._stopping.set()
        self.pacer.gate.close()

    def leave(self) -> None:
        """Sign off, when nothing is in flight any more."""
        self.pacer.stop()

    def _configure(self) -> None:
        """Read the run's configuration, again every few seconds: a feeder may have changed it."""
        if time.monotonic() - self._configured_at < 5 and self._raw is not None:
            return
        raw = self.ledger.config()
        self._configured_at = time.monotonic()
        if raw is None or raw == self._raw:
            return
        job = msgspec.convert(raw, Job)
        base_url = self._settings.base_url or job.base_url
        self._client = Client(base_url, self._settings.api_key, self._capacity)
        self._allowed = Allowed(job.model, frozenset(job.allowed))
        self.job, self._raw = job, raw

    def complete(self, prompt_id: str) -> str:
        """Complete one prompt; returns what became of it, in a word for logs and Flower."""
        gate = self.pacer.gate
        if not gate.acquire(SLOT_WAIT_S):
            self._patiently(lambda: self.ledger.yield_(prompt_id, 0))
            return "no slot"
        try:
            lease_s = longest_request_s(self.job.deadline_s) + LEASE_MARGIN_S
            nonce = uuid.uuid4().hex[:12]
            claim = self._patiently(
                lambda: self.ledger.claim(prompt_id, self.worker, lease_s, nonce)
            )
            if isinstance(claim, Refusal):
                return claim.reason
            try:
                work = _Work(claim, msgspec.json.decode(claim.payload, type=Payload))
            except msgspec.DecodeError as error:
                return self._refuse(claim, error)
            outcome = self._try_once(work)
        finally:
            gate.release()
        while isinstance(outcome, _Wait):
            # The slot is free for another prompt while this one backs off.
            self._stopping.wait(outcome.seconds)
            if not gate.acquire(RETRY_SLOT_WAIT_S):
                return self._release(work, outcome.error, 0)
            try:
                kind, message = outcome.error.kind(), str(outcome.error)
                self._patiently(partial(self.ledger.count_error, kind, message))
                if work.age_s() > LEASE_MARGIN_S:  # Redis was away: the claim may not outlast it
                    return self._release(work, outcome.error, 0)
                outcome = self._try_once(work)
            finally:
                gate.release()
        return outcome

    def _patiently(self, call: Callable[[], T]) -> T:
        return patient(call, self._stopping.is_set)

    def _try_once(self, work: "_Work") -> "str | _Wait":
        """One request, and its transition on the ledger, unless a short wait comes first."""
        work.requested_at = time.time()
        try:
            body = self._request(work.payload)
            answer = self._client.complete(body, self.job.deadline_s, self._allowed)
        except RequestError as error:
            work.last_latency_s = time.time() - work.requested_at
            return self._failed(work, error)
        except Exception as error:
            # A defect of ours must not keep the claim, or the prompt would be bought for ever.
            log.exception("prompt %s: unexpected", work.claim.prompt_id)
            work.last_latency_s = time.time() - work.requested_at
            details = Details(f"{type(error).__name__}: {error}", may_be_billed=True)
            return self._failed(work, ServerFailed(details))
        work.last_latency_s = time.time() - work.requested_at
        self.pacer.saw("successes")
        return self._commit(work, answer)

    def _request(self, payload: Payload) -> bytes:
        body = {**self.job.request, "messages": payload.messages}
        if payload.tools:
            body["tools"] = payload.tools
        return msgspec.json.encode(body)

    def _commit(self, work: "_Work", answer: Answer) -> str:
        claim = work.claim
        cost = answer.cost_usd
        event = self._event(work, "completion", suspect=answer.suspect)
        body = zlib.compress(answer.body, 1)
        return self._patiently(
            lambda: self.ledger.commit(
                claim,
                event,
                body,
                # A response without a cost is taken at what was held for it.
                spent_nusd=claim.reserved_nusd if cost is None else nano_usd(cost),
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                truncated=answer.finish_reason == "length",
                provider=answer.provider,
                followup=_followup(work.payload, answer),
            )
        )

    def _failed(self, work: "_Work", error: RequestError) -> "str | _Wait":
        if not isinstance(error, DropPrompt):  # that is the prompt's fault, and an answer
            self.pacer.saw("throttles" if error.throttles else "failures")
        if isinstance(error, StopFleet):
            return self._pause(work, error)
        if isinstance(error, DropPrompt):
            return self._fail(work, error)
        if error.costs_attempt:
            work.failed += 1
            if work.attempts >= self._most_attempts():
                return self._fail(work, error)
        else:
            work.throttled += 1
        # On top of what the server asks for, so that not all come back in the same instant.
        wait_s = (error.details.retry_after_s or 0) + full_jitter(work.attempts + work.throttled)
        short = wait_s <= SHORT_WAIT_S and work.age_s() < WAITING_S
        if self._stopping.is_set() or not short or _charge(work.claim, error) != Charge():
            return self._release(work, error, wait_s)
        return _Wait(wait_s, error)

    def _most_attempts(self) -> int:
        """While nothing at all succeeds it is rarely the prompt that fails, but not for ever."""
        patience = BREAKER_PATIENCE if self.pacer.breaker_open else 1
        return self.job.max_attempts * patience

    def _release(self, work: "_Work", error: RequestError, wait_s: float) -> str:
        self._patiently(
            lambda: self.ledger.release(
                work.claim,
                wait_s,
                failed_attempts=work.failed,
                charge=_charge(work.claim, error),
                kind=error.kind(),
                message=str(error),
                reject=self._reject(work, error),
            )
        )
        return error.kind()

    def _fail(self, work: "_Work", error: RequestError) -> str:
        self._patiently(
            lambda: self.ledger.fail(
                work.claim,
                kind=error.kind(),
                reason=str(error),
                attempts=max(work.attempts, 1),
                followups=[turn.prompt_id for turn in work.payload.followups],
                charge=_charge(work.claim, error),
                reject=self._reject(work, error),
            )
        )
        extra = {"action": "failed", "prompt_id": work.claim.prompt_id, "run": self.run}
        log.warning("prompt %s failed: %s", work.claim.prompt_id, error, extra=extra)
        return "failed"

    def _refuse(self, claim: Claim, error: msgspec.DecodeError) -> str:
        """A prompt that does not read as one goes to the dead letters, not round and round."""
        reason = f"the prompt on the ledger cannot be read: {error}"
        self._patiently(
            lambda: self.ledger.fail(claim, kind="unreadable prompt", reason=reason, attempts=0)
        )
        return "failed"

    def _pause(self, work: "_Work", error: StopFleet) -> str:
        """Pause the run; the prompt goes back, and no attempt is counted.

        Where others succeed, an endpoint or a key that is refused may be this prompt's doing
        (tools that no endpoint takes): then it counts, so that the run is not paused for ever.
        """
        if self.pacer.succeeded and not isinstance(error, OutOfCredits):
            work.failed += 1
            if work.attempts >= self.job.max_attempts:
                return self._fail(work, error)
        outcome = self._release(work, error, 0)
        if self._patiently(lambda: self.ledger.pause(error.kind(), str(error))):
            log.error("the run is paused: %s", error, extra={"action": "paused", "run": self.run})
        return outcome

    def _reject(self, work: "_Work", error: RequestError) -> tuple[bytes, bytes] | None:
        """A response that was paid for is kept, whatever is wrong with it."""
        if not error.details.cost_usd:
            return None
        event = self._event(work, "reject", reason=str(error))
        return event, zlib.compress(error.details.body, 1)

    def _event(self, work: "_Work", kind: Literal["completion", "reject"], **more: Any) -> bytes:
        event = Event(
            kind=kind,
            prompt_id=work.claim.prompt_id,
            dataset=work.claim.dataset,
            messages=work.payload.messages,
            tools=work.payload.tools,
            turn=work.payload.turn,
            attempts=work.attempts + (kind == "completion"),
            latency_s=work.last_latency_s,
            requested_at=work.requested_at,
            completed_at=work.requested_at + work.last_latency_s,
            worker=self.worker,
            **more,
        )
        return msgspec.json.encode(event)


@dataclass(frozen=True)
class _Wait:
    """A short wait before the next attempt under the same claim."""

    seconds: float
    error: RequestError


@dataclass
class _Work:
    """One claim and what happened under it."""

    claim: Claim
    payload: Payload
    #: Attempts failed under this claim, and those that cost none.
    failed: int = 0
    throttled: int = 0
    claimed_at: float = field(default_factory=time.monotonic)
    #: Of the last request: seconds since the epoch, seconds.
    requested_at: float = 0.0
    last_latency_s: float = 0.0

    @property
    def attempts(self) -> int:
        """Failed attempts of this prompt, those under earlier claims included."""
        return self.claim.attempts + self.failed

    def age_s(self) -> float:
        return time.monotonic() - self.claimed_at


def _charge(claim: Claim, error: RequestError) -> Charge:
    details = error.details
    presumed = claim.reserved_nusd if details.may_be_billed and not details.cost_usd else 0
    return Charge(nano_usd(details.cost_usd), presumed)


def _followup(payload: Payload, answer: Answer) -> tuple[str, bytes] | None:
    """The next turn of the conversation, with the answer before it."""
    if not payload.followups:
        return None
    turn, *rest = payload.followups
    messages = [*payload.messages, answer.message, *turn.messages]
    following = Payload(messages, payload.tools, payload.turn + 1, rest)
    return turn.prompt_id, msgspec.json.encode(following)
