"""Constant differences between what a provider bills and what is found.

A provider whose counts are all off by the same number renders another template, or counts one
token more or less. Most often it leaves out the end token: -1 on completions. In: differences
of one provider, prompts or answers that ended, with tools and without apart. Out: the constant,
for `Rules` to take off before the next verification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

#: Fewer samples than this say nothing.
LEAST_SAMPLES = 20


def constant_offset(
    differences: Iterable[int], least: int = LEAST_SAMPLES, share: float = 0.5
) -> int:
    """The difference that most samples have; 0 when they have none in common.

    Args:
        least: fewer samples than this say nothing.
        share: how many of them must agree. At temperature 1 a third of completions is off by
            some tokens beside the constant.
    """
    counted = Counter(differences)
    if counted.total() < least:
        return 0
    offset, times = counted.most_common(1)[0]
    return offset if times > share * counted.total() else 0
