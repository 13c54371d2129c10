"""Samples read a second time: the very ones that the first pass saw, or there is no set.

In: a part, its rows in the survey's table. Out: its samples in small tables. Invariant: what is
handed on has the prompts, fidelities and lengths that the filters and the card's counts are of;
`gpu-stage tokens` may make a part anew at any time, since it never waits for a reader.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fleet.errors import InputError
from gpu_stage.merge.counts import lengths, loss_tokens
from gpu_stage.merge.rows import Rows, digest, fidelity_code
from gpu_stage.merge.schema import AS_SAMPLED
from gpu_stage.part_rows import read_batches
from gpu_stage.runs import Part

MADE_AGAIN = "it was made again while the merge read it; merge anew when `gpu-stage tokens` is done"


def read_again(part: Part, rows: Rows) -> Iterator[pa.Table]:
    """The samples of a part, in the order of its rows.

    Raises:
        InputError: they are others than the first pass saw.
    """
    read = 0
    for batch in read_batches(part.samples, list(AS_SAMPLED)):
        read += batch.num_rows
        if read > len(rows):
            break
        _check_same(part, batch, rows[read - batch.num_rows : read])
        yield batch
    if read != len(rows):
        raise InputError(f"{part.samples}: no longer {len(rows):,} rows: {MADE_AGAIN}")


def _check_same(part: Part, samples: pa.Table, rows: Rows) -> None:
    prompts = samples["prompt_id"].to_pylist()
    found = {
        "prompt": np.array([digest(prompt) for prompt in prompts], np.uint64),
        "fidelity": [fidelity_code(word) for word in samples["fidelity"].to_pylist()],
        "length": lengths(samples),
        "masked": loss_tokens(samples),
    }
    differ = np.any([found[name] != rows[name] for name in found], axis=0)
    if differ.any():
        prompt = prompts[int(np.flatnonzero(differ)[0])]
        raise InputError(f"{part.samples}: prompt {prompt}: {MADE_AGAIN}")
