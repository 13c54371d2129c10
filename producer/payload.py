"""A frozen chain of turns as the ledger carries it: the JSON of a `fleet.records.Payload`."""

from collections.abc import Sequence

import msgspec

from producer.frozen import Prompt


def chain_payload(chain: Sequence[Prompt]) -> bytes:
    """The first turn with the turns that follow it. Messages are copied as they stand."""
    first, *later = chain
    payload: dict[str, object] = {"messages": msgspec.Raw(first.messages.encode())}
    if first.tools:
        payload["tools"] = msgspec.Raw(first.tools.encode())
    if later:
        payload["followups"] = [
            {"prompt_id": row.prompt_id, "messages": msgspec.Raw(row.messages.encode())}
            for row in later
        ]
    return msgspec.json.encode(payload)
