"""An answer from elsewhere as a row of completions, with the response that it might have been.

In: an `Answered` with its prompt's id. Out: a row of `fleet.schemas.COMPLETIONS`. Invariant: what
is not known is null. Nothing is billed, so nothing has a price, a provider or an endpoint.
"""

import json
from datetime import datetime
from typing import Any

from fleet.records import canonical_json
from gpu_stage.conversations.answered import Answered, Object

WORKER = "import"


def completion(answered: Answered, model: str, source: str, written: datetime) -> Object:
    """A row of `fleet.schemas.COMPLETIONS`."""
    ended = answered.finish_reason or ("tool_calls" if answered.tool_calls else "stop")
    usage = answered.usage or {}
    return {
        "prompt_id": answered.prompt_id,
        "turn": answered.turn,
        "messages": canonical_json(list(answered.messages)),
        "tools": canonical_json(list(answered.tools)) if answered.tools else None,
        "content": answered.content,
        "reasoning": answered.reasoning,
        "tool_calls": canonical_json(list(answered.tool_calls)) if answered.tool_calls else None,
        "finish_reason": ended,
        "model": model,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "attempts": 0,
        "latency_s": 0.0,
        "requested_at": written,
        "completed_at": written,
        "worker": WORKER,
        "response": json.dumps(_body(answered, ended, source), ensure_ascii=False),
    }


def _body(answered: Answered, ended: str, source: str) -> Object:
    """The answer as a response, which is what `tokens.verify` reads."""
    message: Object = {"role": "assistant", "content": answered.content}
    if answered.reasoning:
        message["reasoning"] = answered.reasoning
    if answered.tool_calls:
        message["tool_calls"] = list(answered.tool_calls)
    choice: Object = {"index": 0, "message": message, "finish_reason": ended}
    body: dict[str, Any] = {"imported_from": source, "choices": [choice]}
    if answered.ids:
        if answered.ids.fidelity == "exact":
            choice["token_ids"] = list(answered.ids.completion)
        body["prompt_token_ids"] = list(answered.ids.prompt)
    if answered.usage:
        body["usage"] = dict(answered.usage)
    return body
