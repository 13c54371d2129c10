"""Segmentations of a text near the canonical one, as edits of the canonical tokens.

In: the canonical ids of a text (what the tokenizer gives) and a `Vocabulary`. Out: every
`Edit`, a stretch of one to three canonical tokens read as other tokens of the same bytes. An
edit shares no inner token boundary with what it replaces, so that a set of edits that do not
overlap is a segmentation, and each segmentation is one such set. Byte-level vocabularies of
tiktoken and of `tokenizers` look alike here: ids and their bytes. An id without bytes (a special
token) is never part of an edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple

#: Canonical tokens that an edit replaces, tokens that it puts there, bytes that it covers.
MOST_OLD, MOST_NEW, MOST_BYTES = 3, 4, 48
#: How many tokens an edit may gain or lose.
MOST_CHANGE = 2
#: Edits of one stretch, and spellings that they are chosen from: a run of one character can be read
#: in thousands of ways, a word in a few.
MOST_REWRITINGS, MOST_SPELT = 64, 4096

Ids = tuple[int, ...]


class Edit(NamedTuple):
    """Canonical tokens `start` to `start + len(old)`, and what is read in their place."""

    start: int
    old: Ids
    new: Ids

    @property
    def end(self) -> int:
        return self.start + len(self.old)

    @property
    def change(self) -> int:
        """Tokens gained."""
        return len(self.new) - len(self.old)


class Vocabulary:
    """Bytes of each id, and the ids that spell given bytes."""

    def __init__(self, spellings: Mapping[int, bytes]) -> None:
        """`spellings`: the ordinary tokens; special ones are left out."""
        self.bytes_of = dict(spellings)
        #: Of two ids with the same bytes the lower one.
        self.id_of = {spellings[token]: token for token in sorted(spellings, reverse=True)}
        #: Two bytes that stand side by side in some token.
        self._inside = {text[at : at + 2] for text in self.id_of for at in range(len(text) - 1)}
        self.rewritings = lru_cache(maxsize=1 << 16)(self._rewritings)

    def __contains__(self, token: int) -> bool:
        return token in self.bytes_of

    def spelling(self, token: int) -> bytes:
        """Bytes of a token; of a special one its number, in bytes that no text has."""
        return self.bytes_of.get(token) or b"\xff%d\xff" % token

    def text(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.spelling, ids))

    def may_cross(self, left: int, right: int) -> bool:
        """Whether a token could cover the boundary between the two: seldom one between words."""
        return self.bytes_of[left][-1:] + self.bytes_of[right][:1] in self._inside

    def _rewritings(self, old: Ids) -> tuple[Ids, ...]:
        """Other ids for the bytes of `old`, without a boundary that `old` has within."""
        text = self.text(old)
        if len(text) > MOST_BYTES:
            return ()
        kept = set(accumulate(len(self.bytes_of[token]) for token in old[:-1]))
        fewest, most = len(old) - MOST_CHANGE, min(len(old) + MOST_CHANGE, MOST_NEW)
        spelt = islice(self._spell(text, 0, kept, most), MOST_SPELT)
        found = [ids for ids in spelt if len(ids) >= fewest and ids != old]
        # Of too many those of the fewest tokens, which models write the most.
        return tuple(
            found if len(found) <= MOST_REWRITINGS else sorted(found, key=len)[:MOST_REWRITINGS]
        )

    def _spell(self, text: bytes, at: int, avoid: set[int], most: int) -> Iterator[Ids]:
        """Ids for the bytes from `at` on, `most` of them or fewer, no boundary in `avoid`."""
        if most > 1:
            for end in range(at + 1, len(text)):
                token = None if end in avoid else self.id_of.get(text[at:end])
                if token is not None:
                    for rest in self._spell(text, end, avoid, most - 1):
                        yield (token, *rest)
        whole = self.id_of.get(text[at:])
        if whole is not None:
            yield (whole,)


def edits(canonical: Sequence[int], vocabulary: Vocabulary) -> Iterator[Edit]:
    """Every edit of the canonical ids."""
    for start in range(len(canonical)):
        for size in range(1, min(MOST_OLD, len(canonical) - start) + 1):
            old = tuple(canonical[start : start + size])
            if old[-1] not in vocabulary or not (size == 1 or vocabulary.may_cross(*old[-2:])):
                break
            for new in vocabulary.rewritings(old):
                yield Edit(start, old, new)


def apply(canonical: Sequence[int], chosen: Sequence[Edit]) -> list[int]:
    """The segmentation that edits make of the canonical one; they come in order of place."""
    ids: list[int] = []
    at = 0
    for edit in chosen:
        ids += [*canonical[at : edit.start], *edit.new]
        at = edit.end
    return ids + list(canonical[at:])


def difference(
    canonical: Sequence[int], sampled: Sequence[int], vocabulary: Vocabulary
) -> list[Edit] | None:
    """The edits that turn the canonical ids into the sampled ones; None if the bytes differ."""
    if vocabulary.text(canonical) != vocabulary.text(sampled):
        return None
    places = _ends(canonical, vocabulary), _ends(sampled, vocabulary)
    found: list[Edit] = []
    i = j = 0
    for end in sorted(places[0].keys() & places[1].keys()):
        n, m = places[0][end], places[1][end]
        old, new = tuple(canonical[i:n]), tuple(sampled[j:m])
        if old != new:
            found.append(Edit(i, old, new))
        i, j = n, m
    return found


def _ends(ids: Sequence[int], vocabulary: Vocabulary) -> dict[int, int]:
    """How many tokens end at or before a byte where one ends."""
    ends = accumulate(len(vocabulary.spelling(token)) for token in ids)
    return {end: count for count, end in enumerate(ends, start=1)}
