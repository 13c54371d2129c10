"""What ids say of an answer where its line does not: its text, and how it ended.

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
    return replace(
        answered,
        messages=[{"role": "user", "content": renderer.decode(ids.prompt)}],
        content=content,
        reasoning=reasoning,
    )


def with_end(renderer: Renderer, answered: Answered) -> Answered:
    """The answer with how it ended: ids without an end token were cut off."""
    if answered.ids is None or answered.finish_reason:
        return answered
    ended = "tool_calls" if answered.tool_calls else "stop"
    whole = answered.ids.completion[-1] == renderer.end_id
    return replace(answered, finish_reason=ended if whole else "length")


def _parts(renderer: Renderer, ids: Ids) -> tuple[str | None, str]:
    text = renderer.decode([n for n in ids.completion if n not in renderer.control_ids])
    if not renderer.markup.think:
        return None, text
    opening, closing = renderer.markup.think
    reasoning, found, content = text.partition(closing)
    return (reasoning.removeprefix(opening), content) if found else (None, text)
