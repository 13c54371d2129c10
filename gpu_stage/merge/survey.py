"""The first pass: every row of every part looked at once, and remembered in a few bytes.

In: parts, settings. Out: a `Survey`: the table of rows with the reasons that a row carries in
itself (filters, contamination), and, if asked, the prompts' signatures in a file. Invariant: each
row has one entry, in the order of the parts. It reads no token ids. Reasons that lie between rows
are found in `choose.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fleet.errors import ConfigError, InputError
from gpu_stage.merge.contamination import EvaluationSets
from gpu_stage.merge.filters import FROM_COMPLETIONS, FROM_SAMPLES, UNKNOWN, Filter, Found, Sent
from gpu_stage.merge.near import Signatures
from gpu_stage.merge.rows import (
    ROW,
    Names,
    Rows,
    conversation_of,
    digest,
    fidelity_code,
    opening,
    read_json,
)
from gpu_stage.merge.settings import MergeFile
from gpu_stage.merge.words import user_texts, words_of
from gpu_stage.part_rows import read_rows
from gpu_stage.runs import Part, Verdict

KEPT = "kept"


@dataclass
class Survey:
    """What the first pass has seen."""

    parts: Sequence[Part]
    rows: Rows
    datasets: Names
    providers: Names
    #: Code 0 is KEPT.
    reasons: Names
    evaluation: EvaluationSets
    #: A signature for each row without a reason, in their order; None when not asked for.
    signatures: Path | None
    #: Rows that a signature stands for, in the signatures' order.
    signed: Rows = field(default_factory=lambda: np.empty(0, np.int64))


def survey(
    parts: Sequence[Part],
    settings: MergeFile,
    verdicts: Mapping[str, Mapping[str, Verdict]],
    scratch: Path,
) -> Survey:
    """Look at every row.

    Args:
        verdicts: of each run, the audit's verdict on its providers.
        scratch: a folder for files that are needed until the set is written.

    Raises:
        InputError: samples are not those of their completions, or a loss mask is all ones or
            all zeros.
        ConfigError: the settings name a dataset or a provider that no row has.
    """
    seen = Survey(
        parts,
        np.empty(0, ROW),
        Names(),
        Names(),
        Names(KEPT),
        EvaluationSets(settings.evaluation_sets),
        scratch / "signatures.u32" if settings.near_duplicates else None,
    )
    looks = [
        _Look(seen, Filter(settings.filters, verdicts[part.run]), at)
        for at, part in enumerate(parts)
    ]
    if seen.signatures:
        with Signatures(seen.signatures) as signatures:
            tables = [look.rows(signatures) for look in looks]
    else:
        tables = [look.rows(None) for look in looks]
    seen.rows = np.concatenate(tables)
    seen.signed = np.flatnonzero(seen.rows["reason"] == 0)
    _check_names(seen, settings)
    return seen


class _Look:
    """One part on its way into the table."""

    def __init__(self, seen: Survey, chosen: Filter, at: int) -> None:
        self._seen, self._filter, self._at = seen, chosen, at
        self._part = seen.parts[at]
        self._dataset = seen.datasets.code(self._part.dataset)

    def rows(self, signatures: Signatures | None) -> Rows:
        table = np.zeros(self._part.rows, ROW)
        pairs = zip(
            map(Sent._make, read_rows(self._part.completions, FROM_COMPLETIONS)),
            map(Found._make, read_rows(self._part.samples, FROM_SAMPLES)),
            strict=True,
        )
        for number, (sent, found) in enumerate(pairs):
            table[number] = self._row(number, sent, found, signatures)
        return table

    def _row(
        self, number: int, sent: Sent, found: Found, signatures: Signatures | None
    ) -> tuple[Any, ...]:
        self._check_same(number, sent, found)
        messages = read_json(sent.messages)
        masked = sum(span["end"] - span["start"] for span in found.loss_spans)
        reason, sets = self._filter.reason(self._part.dataset, found), 0
        if not reason:
            self._check_mask(number, found, masked)
            reason, sets = self._overlap(messages)
        if signatures and not reason:
            signatures.add(_words(opening(messages)))
        tools = read_json(sent.tools) if sent.tools else None
        return (
            digest(sent.prompt_id),
            digest([messages, tools]),
            conversation_of(messages),
            sets,
            self._at,
            self._dataset,
            self._seen.providers.code(found.provider or UNKNOWN),
            fidelity_code(found.fidelity),
            found.finish_reason == "length",
            sent.turn,
            found.length,
            masked,
            found.cost_usd or 0.0,
            self._seen.reasons.code(reason or KEPT),
            False,
        )

    def _overlap(self, messages: Sequence[Any]) -> tuple[str | None, int]:
        """The evaluation sets that a prompt overlaps, and the first as a reason."""
        sets = self._seen.evaluation.matches(_words(messages))
        return (f"contaminated: {self._seen.evaluation.named(sets)[0]}" if sets else None), sets

    def _check_same(self, number: int, sent: Sent, found: Found) -> None:
        if sent.prompt_id != found.prompt_id:
            raise InputError(
                f"{self._part.samples}: row {number + 1} is of prompt {found.prompt_id}, that of "
                f"the completions of {sent.prompt_id}; move the file away and run `gpu-stage "
                "tokens` again"
            )

    def _check_mask(self, number: int, found: Found, masked: int) -> None:
        if 0 < masked < found.length:
            return
        what = "all zeros" if masked <= 0 else "all ones"
        raise InputError(
            f"{self._part.samples}: row {number + 1}, prompt {found.prompt_id} of dataset "
            f"{self._part.dataset}: the loss mask is {what} ({masked:,} of {found.length:,} "
            "tokens); a draft learns nothing true from it. Move the file away and run "
            "`gpu-stage tokens` again"
        )


def _words(messages: Sequence[Any]) -> list[list[str]]:
    return [words_of(text) for text in user_texts(messages)]


def _check_names(seen: Survey, settings: MergeFile) -> None:
    filters, datasets = settings.filters, set(seen.datasets)
    for key, chosen, known in (
        ("filters.only_datasets", filters.only_datasets, datasets),
        ("filters.only_providers", filters.only_providers, set(seen.providers)),
        ("[[datasets]]", [dataset.name for dataset in settings.datasets], datasets),
    ):
        for name in chosen:
            if name not in known:
                raise ConfigError(
                    f"{key}: no row is of {name!r}; there are {', '.join(sorted(known))}"
                )
