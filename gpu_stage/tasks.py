"""The Celery app of the GPU stage.

`celery -A gpu_stage worker -Q tokens`, or `-Q gpu -P solo` on a machine with one. A task message
carries the name of a part or shard and where it belongs; what is to be done, the worker sees on the
disk. So a message that comes twice does nothing, and one that is lost is sent again by the command
that waits for it (`--queue`).
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import redis
from celery import Celery, signals

from fleet import broker, run_config
from fleet.app import make_app
from fleet.log import setup
from fleet.settings import Settings
from gpu_stage.recipe import recipe_of
from gpu_stage.tokenise import tokenise

log = logging.getLogger(__name__)

#: The queue and the task bear the stage's name.
TOKENS = "tokens"
#: What needs a GPU has one queue, since it has one set of machines.
GPU = "gpu"
EXTRACT = "extract"

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


@app.task(name=EXTRACT, queue=GPU, bind=True)
def extract(self: Any, folder: str, shard: str) -> str:
    """Make one shard of hidden states.

    Args:
        folder: of the shards, under the same path on every machine.
        shard: its path under the folder.
    """
    # A worker of the queue `tokens` has no torch.
    from gpu_stage.gpu_worker import extract_shard

    def tell(state: dict[str, Any]) -> None:
        # No result backend: Flower shows what the event says, as the task's state.
        self.send_event("task-progress", **state)

    outcome = extract_shard(client(), folder, shard, tell)
    log.info("%s: %s", shard, outcome, extra={"action": EXTRACT, "folder": folder})
    return outcome


@lru_cache(maxsize=1)
def client() -> redis.Redis:
    """The Redis that claims are kept in."""
    return broker.connect(settings.redis_url.reveal())


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
