"""All parts of a run made into samples by Celery workers: sent, watched, sent again when lost.

In: a run's configuration, a Redis. Out: what became of its parts. Redis may lose or double a
message, so the disk says what is done: the files there are watched, and a part that nobody makes
is sent again. Interrupted, what was sent is made all the same.
"""

import time
from collections import Counter
from pathlib import Path

from celery import Celery

from fleet import broker
from fleet.app import make_app
from fleet.errors import FleetError
from fleet.run_config import RunConfig
from gpu_stage import sample_file
from gpu_stage.console import err
from gpu_stage.marks import read_marks
from gpu_stage.progress import Bar
from gpu_stage.recipe import Recipe, recipe_of
from gpu_stage.samples import samples_of
from gpu_stage.tasks import TOKENS
from gpu_stage.token_run import Made, new_parts, row_count
from gpu_stage.tokenise import Outcome

POLL_S = 0.5
#: So long nothing is being made before somebody is told, or parts are sent again.
IDLE_S = 15.0
NO_WORKER = (
    "{:,} parts wait, and nothing takes them: is `celery -A gpu_stage worker -Q tokens` running, "
    "with this REDIS_URL?"
)
#: A part that is lost so often breaks its workers.
MOST_SENT = 3


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
    sent = _Sent(config, recipe, parts)
    with make_app(url) as app, Bar(err, row_count(parts)) as bar:
        while sent.parts:
            if sent.due(waiting=client.llen(TOKENS)):
                sent.send(app)
            time.sleep(POLL_S)
            for path in sent.arrived():
                rows, tokens = sample_file.sizes(path)
                bar.add(rows, tokens)
                made.count(rows, tokens)
                made.outcomes[Outcome.MADE] += 1
            made.failed |= sent.given_up()
    return made


class _Sent:
    """The parts that are to be made, and how often they were sent."""

    def __init__(self, config: RunConfig, recipe: Recipe, parts: list[Path]) -> None:
        self._config, self._recipe = config, recipe
        #: Where the samples of a part will be, by the part.
        self.parts = {part: samples_of(config.directory, part) for part in parts}
        #: What the samples that are to be replaced were made by.
        self._before = {part: read_marks(at) for part, at in self.parts.items()}
        self._times = 0
        self._lively_at = time.monotonic()

    def due(self, waiting: int) -> bool:
        """Whether to send what is not there: at first, and when nothing is made or waits."""
        if not self._times:
            return True
        if any(map(sample_file.claimed, self.parts.values())):
            self._lively_at = time.monotonic()
        if time.monotonic() - self._lively_at < IDLE_S:
            return False
        self._lively_at = time.monotonic()
        if waiting:
            err.print(NO_WORKER.format(waiting), highlight=False, soft_wrap=True)
        return not waiting

    def send(self, app: Celery) -> None:
        self._times += 1
        if self._times > MOST_SENT:
            return
        with app.producer_pool.acquire(block=True) as producer:
            for part in self.parts:
                name = str(part.relative_to(self._config.directory))
                arguments = (str(self._config.path), name)
                app.send_task(TOKENS, arguments, queue=TOKENS, producer=producer)

    def arrived(self) -> list[Path]:
        """Samples that are there now."""
        marks = {part: read_marks(at) for part, at in self.parts.items()}
        for part, found in marks.items():
            if found not in (self._recipe.marks, self._before[part]):
                raise FleetError(
                    f"{self.parts[part]}: a worker made it by another recipe; give all workers "
                    "this version of eagle-fleet, run file and tokenizer folder"
                )
        there = [part for part, found in marks.items() if found == self._recipe.marks]
        return [self.parts.pop(part) for part in there]

    def given_up(self) -> dict[Path, str]:
        """What was sent so often that it must break its workers."""
        if self._times <= MOST_SENT:
            return {}
        left, self.parts = self.parts, {}
        return dict.fromkeys(left, f"sent {MOST_SENT} times and not made; see the workers' logs")
