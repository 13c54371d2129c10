"""Samples on disk: their columns, and where they lie.

`samples/dataset=<name>/part-….parquet` holds what became of every row of the part file of
completions with the same name, in the same order. So what a sample was made from is found
without an index, and which parts are new is seen from the names alone.
"""

from pathlib import Path

import pyarrow as pa

#: `samples/dataset=<name>/part-*.parquet`, one row a completion, refused ones included.
SAMPLES = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("provider", pa.string()),
        pa.field("endpoint", pa.string()),
        #: Prefix and completion; empty when the completion was refused before it was tokenised.
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        #: Half-open ranges of `input_ids` that the target wrote.
        pa.field(
            "loss_spans",
            pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())])),
            nullable=False,
        ),
        #: Tokens before the completion, and of the completion.
        pa.field("prompt_length", pa.int32(), nullable=False),
        pa.field("completion_length", pa.int32(), nullable=False),
        #: One of `tokens.Fidelity`; `rejected` rows have a `reason`.
        pa.field("fidelity", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        #: Chance that ids which were recovered are the sampled ones; null for others.
        pa.field("confidence", pa.float32()),
        #: Tokens found by tokenising anew, and as billed.
        pa.field("prompt_found", pa.int32()),
        pa.field("prompt_billed", pa.int32()),
        pa.field("completion_found", pa.int32()),
        pa.field("completion_billed", pa.int32()),
        pa.field("finish_reason", pa.string()),
        #: As billed for the completion.
        pa.field("cost_usd", pa.float64()),
    ]
)


def completion_parts(run: Path) -> list[Path]:
    """Finished part files of completions, in a fixed order."""
    return sorted(run.glob("completions/dataset=*/part-*.parquet"))


def samples_of(run: Path, completions: Path) -> Path:
    """The file that the samples of a part of completions go to."""
    return run / "samples" / completions.relative_to(run / "completions")


def dataset_of(part: Path) -> str:
    """The dataset of a part file, which its folder names."""
    return part.parent.name.removeprefix("dataset=")
