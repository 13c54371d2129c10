"""Ids that came with a response, taken only where they spell its text.

Engines return ids (`token_ids`), or log-probabilities with each token's bytes or its id in
words (`token_id:123`). Invariant: what is returned here decodes to the answer, but for white
space, which engines strip and re-serialise around reasoning and tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokens.renderer import Renderer
from tokens.response import Response

#: vLLM's `--return-tokens-as-token-ids`.
IN_WORDS = "token_id:"
#: No vocabulary has as many ids; Python refuses to read a number of thousands of digits.
MOST_DIGITS = 10


def known_ids(renderer: Renderer, response: Response, rendered: Sequence[int]) -> list[int] | None:
    """The completion's sampled ids, end token included; None when the response has none.

    Args:
        rendered: the completion as the renderer tokenises it, for the text that it spells.
    """
    for ids in (response.completion_ids, _of_logprobs(renderer, response.logprobs)):
        if ids and in_vocabulary(renderer, ids) and _same_text(renderer, ids, rendered):
            return _ended(ids, rendered, renderer.end_id)
    return None


def in_vocabulary(renderer: Renderer, ids: Sequence[int]) -> bool:
    """Whether every id is one of the family's."""
    return max(ids) < renderer.size


def _of_logprobs(renderer: Renderer, entries: Sequence[Mapping[str, Any]]) -> list[int] | None:
    ids = []
    for entry in entries:
        number = _of_entry(renderer, entry)
        if number is None:
            return None
        ids.append(number)
    return ids


def _of_entry(renderer: Renderer, entry: Mapping[str, Any]) -> int | None:
    token, spelt = entry.get("token"), entry.get("bytes")
    if isinstance(token, str) and token.startswith(IN_WORDS):
        digits = token.removeprefix(IN_WORDS)
        return int(digits) if digits.isdecimal() and len(digits) <= MOST_DIGITS else None
    try:
        return renderer.ids_by_bytes.get(bytes(spelt)) if isinstance(spelt, list) else None
    except (TypeError, ValueError):
        return None


def _same_text(renderer: Renderer, ids: Sequence[int], rendered: Sequence[int]) -> bool:
    return _bare(renderer, ids) == _bare(renderer, rendered)


def _bare(renderer: Renderer, ids: Sequence[int]) -> str:
    """The text of ids as an engine shows it, less its white space: without control tokens, and
    without the first bytes of a character that was cut off."""
    shown = [number for number in ids if number not in renderer.control_ids]
    return "".join(renderer.decode(shown).split()).rstrip("\ufffd")


def _ended(ids: Sequence[int], rendered: Sequence[int], end_id: int) -> list[int]:
    """With the end token of an answer that ended: some engines keep it to themselves."""
    ended = bool(rendered) and rendered[-1] == end_id and ids[-1] != end_id
    return [*ids, end_id] if ended else list(ids)
