"""Constant differences of counts, by provider, and what to do about each.

In: tallies, the run file's `[tokens]`. Out: a `Note` for every constant that is found: an end
token that is not billed, or another template. Tallies of all datasets count together, since the
template is the provider's.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.run_config import Tokens
from gpu_stage.tally import Tallies
from tokens import constant_offset
from tokens.offsets import LEAST_SAMPLES

END_NOT_BILLED = -1


@dataclass(frozen=True)
class Note:
    """A provider that is off by a constant."""

    provider: str
    #: `prompt` or `completion`.
    what: str
    #: Billed minus found.
    offset: int
    #: Rows that are off by it, of those that have both counts.
    rows: int
    of: int
    #: What the run file takes off.
    taken_off: int

    @property
    def sentence(self) -> str:
        share = f"{self.rows / self.of:.0%} of {self.of:,}"
        start = f"{self.provider}: {self.what} {signed(self.offset)} on {share}"
        if self.offset == self.taken_off:
            return f"{start}; the run file takes it off"
        if self.taken_off and self.of < LEAST_SAMPLES:
            return (
                f"{self.provider}: {self.of:,} {self.what} counts are too few to say whether "
                f"{signed(self.taken_off)}, which the run file takes off, is right"
            )
        if self.taken_off:
            return (
                f"{start}, and the run file takes {signed(self.taken_off)} off; correct "
                f"tokens.{self.what}_offsets"
            )
        named = json.dumps(self.provider, ensure_ascii=False)
        setting = f"tokens.{self.what}_offsets = {{ {named} = {self.offset} }}"
        if self.what == "prompt":
            return (
                f"{start}: it renders another template, or adds a prompt of its own; look at "
                f"what it adds before you set {setting}"
            )
        why = "does not bill the end token" if self.offset == END_NOT_BILLED else "ends otherwise"
        return f"{start}: it {why}; set {setting} to take it off"


def signed(difference: int) -> str:
    """A difference as people write it."""
    return f"{difference:+d}".replace("-", "−") if difference else "0"


def notes(tallies: Tallies, table: Tokens) -> list[Note]:
    """The constants that are found, by provider."""
    prompts: dict[str, Counter[int]] = {}
    ended: dict[str, Counter[int]] = {}
    for (_, provider), tally in sorted(tallies.items(), key=lambda item: str(item[0])):
        if provider is not None:
            prompts.setdefault(provider, Counter()).update(tally.prompt)
            ended.setdefault(provider, Counter()).update(tally.ended)
    return [
        *_notes("prompt", prompts, table.prompt_offsets),
        *_notes("completion", ended, table.completion_offsets),
    ]


def _notes(
    what: str, counted: dict[str, Counter[int]], taken_off: dict[str, int]
) -> Iterable[Note]:
    for provider, differences in counted.items():
        offset, known = constant_offset(differences.elements()), taken_off.get(provider, 0)
        if offset or known:
            rows, of = differences[offset], max(differences.total(), 1)
            yield Note(provider, what, offset, rows, of, known)
