"""Whether what is bought makes samples: some of the answers, tokenised as they are written.

In: records on their way to disk, the target's tokenizer. Out: on the ledger, for each endpoint, how
many answers were looked at, how many of them no sample can be made of, and why the last one not.
An endpoint that renders another template, serves another model or leaves its markup in the text is
seen so after some twenty answers, and not when all the money is spent. What is not the endpoint's
doing (an answer cut off, an empty one) does not count. Where the collector's host has no tokenizer
nothing is looked at, which is said once.
"""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from fleet.ledger import Ledger
from fleet.run_config import Tokens
from fleet.schemas import COMPLETIONS
from fleet.transitions import ANY_ENDPOINT
from tokens import (
    FolderError,
    Prompt,
    Reason,
    Renderer,
    Rules,
    Sample,
    TokensError,
    load,
    read_body,
    total,
    verify,
)
from workers.rows import Record

log = logging.getLogger(__name__)

#: Of each endpoint, all of the first answers and then one in so many are looked at.
FIRST, ONE_IN = 50, 20
#: What says something of the endpoint.
TELLING = {
    Reason.PROMPT_OFF,
    Reason.COMPLETION_OFF,
    Reason.LEAKED_THINK,
    Reason.TOOL_MARKUP,
    Reason.WRONG_PROVIDER,
}


class Job(msgspec.Struct, frozen=True):
    """`verify` of `Ledger.config()`."""

    #: Folder of the target, as the feeder's host names it.
    target: str
    thinking: bool
    tokens: Tokens


class Verifier:
    """Looks at the answers of one run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._job: Job | None = None
        self._renderer: Renderer | None = None
        self._seen: Counter[str] = Counter()
        self._raw: Any = None
        self._providers: dict[str, str] = {}

    def look(self, record: Record) -> None:
        """Look at a completion, unless enough of its endpoint's were.

        Raises:
            redis.RedisError: Redis is away.
        """
        row = dict(zip(COMPLETIONS.names, record.values, strict=True))
        tag = self._tag(row)
        self._seen[tag] += 1
        if self._seen[tag] > FIRST and self._seen[tag] % ONE_IN:
            return
        self._configure()
        if self._job is None or self._renderer is None:
            return
        sample = _judged(self._renderer, self._job, row)
        if sample is not None:
            why = f"{sample.reason}: {sample.detail}" if sample.reason in TELLING else ""
            self._ledger.count_verified(tag, why.removesuffix(": "))

    def _tag(self, row: dict[str, Any]) -> str:
        """Where OpenRouter chose, the endpoint that the answer names."""
        name = row["provider"] or ""
        return (
            self._providers.get(name, name) if row["endpoint"] == ANY_ENDPOINT else row["endpoint"]
        )

    def _configure(self) -> None:
        """Read what a feeder has told, again with every look: it may have changed."""
        config = self._ledger.config() or {}
        self._providers, raw = config.get("providers", {}), config.get("verify")
        if raw == self._raw:
            return
        self._raw, self._job, self._renderer = raw, None, None
        if raw is None:
            return
        self._job = msgspec.convert(raw, Job)
        try:
            self._renderer = load(Path(self._job.target))
        except FolderError as error:
            log.warning("answers are not verified as they come: %s", error)


def _judged(renderer: Renderer, job: Job, row: dict[str, Any]) -> Sample | None:
    """None for a row that cannot be read as a conversation."""
    table, name = job.tokens, row["provider"] or ""
    rules = Rules(
        near_tokens=table.near_tokens,
        near_share=table.near_share,
        truncated=True,
        prompt_offset=table.prompt_offsets.get(name, 0),
        completion_offset=table.completion_offsets.get(name, 0),
    )
    tools = json.loads(row["tools"]) if row["tools"] else None
    try:
        prompt = Prompt(json.loads(row["messages"]), tools, job.thinking)
        reply = read_body(row["response"].encode())
    except (TokensError, ValueError, RecursionError):
        return None
    return total(lambda: verify(renderer, prompt, reply, rules))
