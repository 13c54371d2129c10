"""All parts of a run made into samples by Celery workers.

In: a run's configuration, a Redis. Out: what became of its parts.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fleet import broker
from fleet.app import make_app
from fleet.errors import FleetError
from fleet.run_config import RunConfig
from gpu_stage import claimed_file, sample_file
from gpu_stage.console import err
from gpu_stage.marks import read_marks
from gpu_stage.progress import Bar
from gpu_stage.recipe import Recipe, recipe_of
from gpu_stage.samples import samples_of
from gpu_stage.sending import Kind, Sending
from gpu_stage.tasks import TOKENS
from gpu_stage.token_run import Made, new_parts, row_count
from gpu_stage.tokenise import Outcome


def tokenise_by_queue(config: RunConfig, url: str) -> Made:
    """Have workers make what is new; returns when it is there, or cannot be made.

    Raises:
        LedgerUnavailable: Redis does not answer.
        FleetError: a worker makes samples by another recipe.
    """
    client = broker.connect(url)
    broker.ping(client)
    recipe = recipe_of(config)
    parts, there = new_parts(config, recipe)
    made = Made(Counter({Outcome.UP_TO_DATE: there} if there else {}))
    wanted = _Wanted(config, recipe, parts)
    sending = Sending(Kind(TOKENS, TOKENS, "parts"), wanted.messages(), wanted.busy)
    with make_app(url) as app, Bar(err, "tokens", row_count(parts)) as bar:
        while sending.left:
            made.failed |= sending.go_on(app, client)
            arrived = wanted.arrived(sending.left)
            for part in arrived:
                rows, tokens = sample_file.sizes(wanted.samples[part])
                bar.add(rows, tokens)
                made.count(rows, tokens)
                made.outcomes[Outcome.MADE] += 1
            sending.done(arrived)
    return made


class _Wanted:
    """The parts that are to be made, and where their samples will be."""

    def __init__(self, config: RunConfig, recipe: Recipe, parts: list[Path]) -> None:
        self._config, self._recipe, self._parts = config, recipe, parts
        self.samples = {part: samples_of(config.directory, part) for part in parts}
        #: What the samples that are to be replaced were made by.
        self._before = {part: read_marks(at) for part, at in self.samples.items()}

    def messages(self) -> dict[Path, tuple[str, str]]:
        run, directory = str(self._config.path), self._config.directory
        return {part: (run, str(part.relative_to(directory))) for part in self._parts}

    def busy(self, parts: Iterable[Path]) -> bool:
        return any(claimed_file.claimed(self.samples[part]) for part in parts)

    def arrived(self, parts: Iterable[Path]) -> list[Path]:
        """Those whose samples are there now."""
        marks = {part: read_marks(self.samples[part]) for part in parts}
        for part, found in marks.items():
            if found not in (self._recipe.marks, self._before[part]):
                raise FleetError(
                    f"{self.samples[part]}: a worker made it by another recipe; give all workers "
                    "this version of eagle-fleet, run file and tokenizer folder"
                )
        return [part for part, found in marks.items() if found == self._recipe.marks]
