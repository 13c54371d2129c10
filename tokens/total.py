"""The last net under a judgement: whatever a completion holds, it becomes a sample.

What a body may hold is known (`response`, `conversation`), and refused with a reason of its own.
What was not foreseen must not stop a part of ten thousand others, and is refused here.
"""

from __future__ import annotations

from collections.abc import Callable

from tokens.sample import Counts, Fidelity, Reason, Sample


def total(judge: Callable[[], Sample]) -> Sample:
    """What `judge` gives; where it fails, a rejected sample that names the error's type: its
    message may hold text of the completion."""
    try:
        return judge()
    except Exception as error:
        detail = f"judging it failed: {type(error).__name__}"
        return Sample(Fidelity.REJECTED, Counts(), reason=Reason.UNRENDERABLE, detail=detail)
