"""Ids read back as text: for rows that hold ids and no messages.

In: a target's renderer, an answer with ids. Out: the same answer with messages and text. What the
model read becomes one user message with the template's own tokens spelt out in it; the ids of the
row, not that text, are what its sample gets. What it wrote is cut at the end of its thought.
Whether the ids then spell the text is for `tokens.verify` to say.
"""

from dataclasses import replace

from gpu_stage.conversations.answered import Answered, Ids, Unusable
from tokens import Renderer


def spelt(renderer: Renderer, answered: Answered) -> Answered:
    """The answer with what its ids say.

    Raises:
        Unusable: an id is not in the target's vocabulary.
    """
    ids = answered.ids
    if ids is None or max(*ids.prompt, *ids.completion) >= renderer.size:
        raise Unusable("ids that are not in the target's vocabulary")
    reasoning, content = _parts(renderer, ids)
    ended = ids.completion[-1] == renderer.end_id
    return replace(
        answered,
        messages=[{"role": "user", "content": renderer.decode(ids.prompt)}],
        content=content,
        reasoning=reasoning,
        finish_reason=answered.finish_reason or ("stop" if ended else "length"),
    )


def _parts(renderer: Renderer, ids: Ids) -> tuple[str | None, str]:
    text = renderer.decode([n for n in ids.completion if n not in renderer.control_ids])
    if not renderer.markup.think:
        return None, text
    opening, closing = renderer.markup.think
    reasoning, found, content = text.partition(closing)
    return (reasoning.removeprefix(opening), content) if found else (None, text)
