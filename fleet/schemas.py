"""The columns of every file in a run directory, with units.

Timestamps are UTC. JSON columns hold exactly what was sent or received, so no later stage has
to guess.
"""

import pyarrow as pa

#: `prompts/<dataset>.parquet`, one row a prompt; row order never changes once written.
PROMPTS = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        #: JSON list of messages. For a follow-up turn: only what comes after the parent's answer.
        pa.field("messages", pa.string(), nullable=False),
        #: JSON list of tool definitions, or null.
        pa.field("tools", pa.string()),
        #: The prompt whose answer precedes this turn; null for a first turn. A parent's
        #: follow-ups stand directly after it, in order.
        pa.field("parent_prompt_id", pa.string()),
        #: 0 for the first turn of a conversation that is written anew, then 1, 2, …
        pa.field("turn", pa.int32(), nullable=False),
        #: Where the prompt came from.
        pa.field("source", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)

#: `rejects/prompts-<dataset>.jsonl`: one JSON object a line with these keys.
PROMPT_REJECT_KEYS = ("source", "line", "reason", "row")

#: `completions/dataset=<name>/part-*.parquet`, one row a prompt.
COMPLETIONS = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        #: JSON, as sent.
        pa.field("messages", pa.string(), nullable=False),
        pa.field("tools", pa.string()),
        #: The answer. `content` is null when the model only called tools.
        pa.field("content", pa.string()),
        pa.field("reasoning", pa.string()),
        #: JSON list as received, or null.
        pa.field("tool_calls", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("native_finish_reason", pa.string()),
        #: Canonical model slug and provider display name, as answered.
        pa.field("model", pa.string()),
        pa.field("provider", pa.string()),
        pa.field("generation_id", pa.string()),
        #: Usage as billed. `reasoning_tokens` is part of `completion_tokens`.
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("cost_usd", pa.float64()),
        #: Why the text may not be the target's plain answer (leaked markup, …), or null.
        pa.field("suspect", pa.string()),
        #: Attempts that were counted (a 429 is not), this one included.
        pa.field("attempts", pa.int32(), nullable=False),
        #: Seconds from sending the request to its last byte.
        pa.field("latency_s", pa.float64(), nullable=False),
        pa.field("requested_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("completed_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
        #: Tag of the endpoint that was asked; `openrouter`: any that the run allows.
        pa.field("endpoint", pa.string()),
        #: The whole response body as JSON text: log-probabilities and all else that was paid for.
        pa.field("response", pa.string(), nullable=False),
    ]
)

#: `rejects/completions/part-*.parquet`: responses that were paid for or refused, with the reason.
REJECTS = pa.schema(
    [
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        *COMPLETIONS,
    ]
)
