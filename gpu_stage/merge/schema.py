"""The columns of a training set's files."""

import pyarrow as pa

#: `train/part-*.parquet` and `heldout/part-*.parquet`, one row a sample, shuffled.
SET = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        #: 16 hex digits that all rows of a conversation share.
        pa.field("conversation", pa.string(), nullable=False),
        #: Name of the run's directory.
        pa.field("run", pa.string(), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("provider", pa.string()),
        pa.field("fidelity", pa.string(), nullable=False),
        #: Chance that ids which were recovered are the sampled ones; null for others.
        pa.field("confidence", pa.float32()),
        pa.field("finish_reason", pa.string()),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        #: Half-open ranges of `input_ids` that the target wrote.
        pa.field(
            "loss_spans",
            pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())])),
            nullable=False,
        ),
        pa.field("prompt_length", pa.int32(), nullable=False),
        pa.field("completion_length", pa.int32(), nullable=False),
        #: As billed for the completion.
        pa.field("cost_usd", pa.float64()),
    ]
)
#: Those that are taken from the samples as they are.
AS_SAMPLED = (
    "prompt_id",
    "provider",
    "fidelity",
    "confidence",
    "finish_reason",
    "input_ids",
    "loss_spans",
    "prompt_length",
    "completion_length",
    "cost_usd",
)
#: Columns whose values repeat.
REPEATING = ["run", "dataset", "provider", "fidelity", "finish_reason"]

#: `dropped.parquet`, one row for each row of the runs that is not in the set.
DROPPED = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
