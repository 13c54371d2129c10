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
from typing import Any, Literal, TypeVar

import msgspec
import redis

from fleet.ledger import Ledger
from fleet.records import Event, Payload
from fleet.settings import Settings
from fleet.transitions import ANY_ENDPOINT, Claim, Failure, Purchase, Refusal, nano_usd
from workers.answers import Answer
from workers.errors import (
    Details,
    DropPrompt,
    NoEndpoint,
    OutOfCredits,
    RequestError,
    ServerFailed,
    StopFleet,
)
from workers.job import Job, cost_nusd
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
        #: This process has had an answer from this run's endpoints.
        self._succeeded = False
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
        self.job, self._raw = job, raw

    def complete(self, prompt_id: str) -> str:
        """Complete one prompt; returns what became of it, in a word for logs and Flower."""
        gate = self.pacer.gate
        if not gate.acquire(SLOT_WAIT_S):
            self._patiently(lambda: self.ledger.yield_(prompt_id, 0))
            return "no slot"
        try:
            nonce = uuid.uuid4().hex[:12]
            claim = self._patiently(
                lambda: self.ledger.claim(prompt_id, self.worker, self._lease_s(), nonce)
            )
            if isinstance(claim, Refusal):
                return claim.reason
            try:
                work = _Work(claim, msgspec.json.decode(claim.payload, type=Payload))
            except msgspec.DecodeError as error:
                return self._refuse(claim, error)
            outcome = self._try(work)
        finally:
            gate.release()
        while isinstance(outcome, float):
            # The slot is free for another prompt while this one backs off.
            self._stopping.wait(outcome)
            if not gate.acquire(RETRY_SLOT_WAIT_S):
                return self._release(work, 0)
            try:
                outcome = self._try_again(work)
            finally:
                gate.release()
        return outcome

    def _lease_s(self) -> float:
        return longest_request_s(self.job.deadline_s) + LEASE_MARGIN_S

    def _patiently(self, call: Callable[[], T]) -> T:
        return patient(call, self._stopping.is_set)

    def _try(self, work: "_Work") -> str | float:
        """Requests, until one has made its transition on the ledger: what became of the prompt.

        Or the seconds to wait before the next attempt under the same claim.
        """
        outcome = None
        while outcome is None:
            outcome = self._try_once(work)
        return outcome

    def _try_again(self, work: "_Work") -> str | float:
        """After a wait: at whichever endpoint takes requests now."""
        got = self._reroute(work, None, now=True)
        if got is None:
            return self._try(work)
        return "lost" if got.reason == "lost" else self._release(work, got.retry_after_s)

    def _try_once(self, work: "_Work") -> str | float | None:
        """One request. None: to be tried again at once, elsewhere."""
        work.requested_at = time.time()
        endpoint = work.claim.endpoint
        try:
            body = self.job.body(work.payload, endpoint)
            answer = self._client.complete(body, self.job.deadline_s, self.job.allowed(endpoint))
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
        self._succeeded = True
        return self._commit(work, answer)

    def _commit(self, work: "_Work", answer: Answer) -> str:
        claim = work.claim
        event = self._event(work, "completion", suspect=answer.suspect)
        body = zlib.compress(answer.body, 1)
        purchase = Purchase(
            spent_nusd=cost_nusd(answer, claim.endpoint, claim.reserved_nusd),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            truncated=answer.finish_reason == "length",
            endpoint=self.job.served_by(answer.provider, claim.endpoint),
            latency_s=work.last_latency_s,
        )
        followup = _followup(work.payload, answer)
        return self._patiently(lambda: self.ledger.commit(claim, event, body, purchase, followup))

    def _failed(self, work: "_Work", error: RequestError) -> str | float | None:
        pinned = work.claim.endpoint.tag != ANY_ENDPOINT
        if isinstance(error, StopFleet) and not (pinned and isinstance(error, NoEndpoint)):
            return self._pause(work, error)
        if isinstance(error, DropPrompt):
            return self._fail(work, error)
        if error.costs_attempt:
            work.failed += 1
            if work.attempts >= self._most_attempts():
                return self._fail(work, error)
        else:
            work.throttled += 1
        failure = self._failure(work, error)
        # On top of what the server asks for, so that not all come back in the same instant.
        wait_s = failure.retry_after_s + full_jitter(work.attempts + work.throttled)
        if self._stopping.is_set() or failure.presumed or failure.spent_nusd:
            return self._release(work, wait_s, failure)
        # An endpoint that is full is left at once. What failed may fail elsewhere too, and each
        # time costs an attempt: that waits.
        elsewhere = not error.costs_attempt and error.verdict != "account"
        got = self._reroute(work, failure, now=elsewhere)
        if got is None:
            return None
        if got.reason == "lost":
            return "lost"
        short = wait_s <= SHORT_WAIT_S and work.age_s() < WAITING_S
        return wait_s if short else self._release(work, wait_s)

    def _reroute(self, work: "_Work", failure: Failure | None, *, now: bool) -> Refusal | None:
        """Tell the failure and take the next endpoint; the refusal when there is none."""
        got = self._patiently(
            lambda: self.ledger.reroute(work.claim, failure, self._lease_s(), now=now)
        )
        if isinstance(got, Refusal):
            return got
        work.claim = got
        return None

    def _failure(self, work: "_Work", error: RequestError) -> Failure:
        details = error.details
        named = self.job.served_by(details.provider, work.claim.endpoint)
        return Failure(
            kind=error.kind(),
            message=str(error),
            verdict=error.verdict,
            retry_after_s=details.retry_after_s or 0.0,
            endpoint=named,
            spent_nusd=nano_usd(details.cost_usd),
            presumed=details.may_be_billed and not details.cost_usd,
            reject=self._reject(work, error),
        )

    def _most_attempts(self) -> int:
        """While nothing at all succeeds it is rarely the prompt that fails, but not for ever."""
        patience = BREAKER_PATIENCE if self.pacer.breaker_open else 1
        return self.job.max_attempts * patience

    def _release(self, work: "_Work", wait_s: float, failure: Failure | None = None) -> str:
        self._patiently(
            lambda: self.ledger.release(work.claim, wait_s, failure, failed_attempts=work.failed)
        )
        return failure.kind if failure else "released"

    def _fail(self, work: "_Work", error: RequestError) -> str:
        followups = [turn.prompt_id for turn in work.payload.followups]
        failure, attempts = self._failure(work, error), max(work.attempts, 1)
        self._patiently(lambda: self.ledger.fail(work.claim, failure, attempts, followups))
        extra = {"action": "failed", "prompt_id": work.claim.prompt_id, "run": self.run}
        log.warning("prompt %s failed: %s", work.claim.prompt_id, error, extra=extra)
        return "failed"

    def _refuse(self, claim: Claim, error: msgspec.DecodeError) -> str:
        """A prompt that does not read as one goes to the dead letters, not round and round."""
        reason = f"the prompt on the ledger cannot be read: {error}"
        self._patiently(
            lambda: self.ledger.fail(claim, Failure("unreadable prompt", reason), attempts=0)
        )
        return "failed"

    def _pause(self, work: "_Work", error: StopFleet) -> str:
        """Pause the run; the prompt goes back, and no attempt is counted.

        Where others succeed, a key that is refused may be this prompt's doing: then it counts, so
        that the run is not paused for ever.
        """
        if self._succeeded and not isinstance(error, OutOfCredits):
            work.failed += 1
            if work.attempts >= self.job.max_attempts:
                return self._fail(work, error)
        outcome = self._release(work, 0, self._failure(work, error))
        kind, reason, until = error.kind(), str(error), error.details.resets_at
        if self._patiently(lambda: self.ledger.pause(kind, reason, until)):
            log.error("the run is paused: %s", error, extra={"action": "paused", "run": self.run})
        return outcome

    def _reject(self, work: "_Work", error: RequestError) -> tuple[bytes, bytes]:
        """A response that was paid for is kept, whatever is wrong with it."""
        if not error.details.cost_usd:
            return b"", b""
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
            endpoint=work.claim.endpoint.tag,
            **more,
        )
        return msgspec.json.encode(event)


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


def _followup(payload: Payload, answer: Answer) -> tuple[str, bytes] | None:
    """The next turn of the conversation, with the answer before it."""
    if not payload.followups:
        return None
    turn, *rest = payload.followups
    messages = [*payload.messages, answer.message, *turn.messages]
    following = Payload(messages, payload.tools, payload.turn + 1, rest)
    return turn.prompt_id, msgspec.json.encode(following)
