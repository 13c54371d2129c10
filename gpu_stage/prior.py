"""How a run's target departs from its canonical ids: learned once, kept beside the samples.

In: the samples of a run. Out: `samples/prior.json`, by which `near` samples are looked at again,
and `samples/recovery.json`, the providers whose samples are. The prior is learned from `exact`
samples once there are enough, and then kept, so that samples do not change under their readers;
deleted, it is learned anew. One of another run of the same target may be put there. A provider is
trusted when most of its answers are billed as many tokens as they have (`[tokens]` offsets taken
off): one that leaves out the end token would have its samples changed for the worse.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.dataset as ds

from fleet.errors import InputError
from fleet.run_config import RunConfig
from gpu_stage.samples import completion_parts, samples_of
from gpu_stage.tally import tally
from tokens import Counts, Fidelity, Renderer, Sample
from tokens.edit_prior import Prior, PriorError
from tokens.recovery import learn_prior

#: Fewer exact samples say too little; more than the most are not read.
LEAST_SAMPLES, MOST_SAMPLES = 200, 2_000
#: Answers of a provider that ended, and the share of them whose count has to agree.
LEAST_ANSWERS, LEAST_SHARE = 20, 0.5


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
    _write(path, prior.to_json())
    return len(samples)


def read_trusted(directory: Path) -> frozenset[str]:
    """Display names of the providers whose samples are looked at again.

    Raises:
        InputError: the file is not what `trust_if_possible` writes.
    """
    path = _trusted_file(directory)
    if not path.exists():
        return frozenset()
    try:
        return frozenset(json.loads(path.read_bytes())["providers"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error!r}): delete it") from error


def trust_if_possible(config: RunConfig) -> bool:
    """Look at the counts of all providers anew; whether others are trusted than before."""
    files = (samples_of(config.directory, part) for part in completion_parts(config.directory))
    ended: dict[str, Counter[int]] = {}
    for (_, provider), counted in tally(path for path in files if path.exists()).items():
        ended.setdefault(provider or "", Counter()).update(counted.ended)
    offsets = config.tokens.completion_offsets
    trusted = {name for name, counts in ended.items() if _agrees(counts, offsets.get(name, 0))}
    if trusted == read_trusted(config.directory):
        return False
    text = json.dumps({"providers": sorted(trusted)}, indent=1, ensure_ascii=False)
    _write(_trusted_file(config.directory), text)
    return True


def _agrees(differences: Counter[int], offset: int) -> bool:
    total = differences.total()
    return total >= LEAST_ANSWERS and differences[offset] > LEAST_SHARE * total


def _trusted_file(directory: Path) -> Path:
    return directory / "samples" / "recovery.json"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    partial.replace(path)


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
