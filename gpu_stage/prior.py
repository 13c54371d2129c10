"""How a run's target departs from its canonical ids: learned once, kept beside the samples.

In: the `exact` samples of a run. Out: `samples/prior.json`, by which `near` samples are looked at
again. It is learned once there are enough, and then kept, so that samples do not change under
their readers; deleted, it is learned anew. One of another run of the same target may be put there.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.dataset as ds

from fleet.errors import InputError
from fleet.run_config import RunConfig
from tokens import Counts, Fidelity, Renderer, Sample
from tokens.edit_prior import Prior, PriorError
from tokens.recovery import learn_prior

#: Fewer exact samples say too little; more than the most are not read.
LEAST_SAMPLES, MOST_SAMPLES = 200, 2_000


def prior_file(directory: Path) -> Path:
    return directory / "samples" / "prior.json"


def read_prior(directory: Path) -> Prior | None:
    """The prior of a run; None before there is one.

    Raises:
        InputError: the file is not a prior.
    """
    path = prior_file(directory)
    if not path.exists():
        return None
    try:
        return Prior.from_json(path.read_text("utf-8"))
    except (PriorError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}: delete it") from error


def learn_if_possible(config: RunConfig, renderer: Renderer) -> int:
    """Learn the prior of a run that has none; from how many samples, or 0: from none."""
    path = prior_file(config.directory)
    if path.exists():
        return 0
    samples = list(islice(_exact(config.directory), MOST_SAMPLES))
    if len(samples) < LEAST_SAMPLES:
        return 0
    try:
        prior = learn_prior(renderer, samples)
    except PriorError:
        return 0  # all are canonical, as at temperature 0: there is nothing to look for
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(prior.to_json(), "utf-8")
    partial.replace(path)
    return len(samples)


def _exact(directory: Path) -> Iterator[Sample]:
    files = sorted((directory / "samples").glob("dataset=*/part-*.parquet"))
    if not files:
        return
    rows = ds.dataset(files, format="parquet").to_batches(
        columns=["input_ids", "prompt_length"],
        filter=ds.field("fidelity") == Fidelity.EXACT.value,
        batch_size=256,
    )
    for batch in rows:
        for row in batch.to_pylist():
            ids, start = tuple(row["input_ids"]), row["prompt_length"]
            spans = ((start, len(ids)),)
            counts = Counts()
            yield Sample(Fidelity.EXACT, counts, None, None, ids, start, spans)
