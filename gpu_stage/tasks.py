"""The Celery app of the GPU stage.

`celery -A gpu_stage worker -Q tokens`. A task message carries the name of a part and where its
run is; what is to be done, the worker sees on the disk. So a message that comes twice does
nothing, and one that is lost is sent again by `gpu-stage tokens --queue`.
"""

import logging
from pathlib import Path
from typing import Any

from celery import Celery, signals

from fleet import run_config
from fleet.app import make_app
from fleet.log import setup
from fleet.settings import Settings
from gpu_stage.recipe import recipe_of
from gpu_stage.tokenise import tokenise

log = logging.getLogger(__name__)

#: The queue and the task bear the stage's name.
TOKENS = "tokens"

settings = Settings.from_environment()
app: Celery = make_app(settings.redis_url.reveal())


@app.task(name=TOKENS, queue=TOKENS)
def tokens(run_file: str, part: str) -> str:
    """Make the samples of one part of completions.

    Args:
        run_file: of the run that the part is of, where every worker can read it.
        part: its path under the run's directory.
    """
    config = run_config.load(Path(run_file))
    recipe = recipe_of(config)
    outcome = tokenise(config.directory, config.directory / part, recipe, lambda *_: None)
    log.info("%s: %s", part, outcome, extra={"action": TOKENS, "run": config.run.name})
    return outcome


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:
    setup(settings.log_level, settings.secrets())


@signals.celeryd_after_setup.connect
def _need_redis(**_: Any) -> None:
    if not settings.redis_url:
        raise SystemExit("REDIS_URL is not set: a worker needs it")


@signals.heartbeat_sent.connect
def _beat(**_: Any) -> None:
    if settings.heartbeat_file:
        settings.heartbeat_file.touch()
