"""The Celery app of the workers, and its one task.

`celery -A workers worker -P threads -c 50`. A worker process serves any number of runs: it
learns a run's configuration from the ledger when the first task of that run arrives.
"""

import logging
import os
import socket
import threading
import uuid
from contextlib import nullcontext
from typing import Any

import redis
from celery import Celery, signals

from fleet import broker
from fleet.app import TASK, make_app
from fleet.log import setup
from fleet.settings import Settings
from workers.generate import Generator
from workers.watchdog import Watchdog

log = logging.getLogger(__name__)

settings = Settings.from_environment()
app: Celery = make_app(settings.redis_url.reveal())


class Host:
    """This worker process: its name, its capacity, and a `Generator` for each run it serves."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.capacity = 1
        self._client: redis.Redis | None = None
        self._generators: dict[str, Generator] = {}
        self._watchdog: Watchdog | None = None
        self._lock = threading.Lock()

    def begin(self, capacity: int) -> None:
        """Before the first task."""
        self.capacity = capacity
        if settings.watchdog_s:
            self._watchdog = Watchdog(self._redis(), capacity, settings.watchdog_s, self.stop)

    def complete(self, run: str, prompt_id: str) -> str:
        with self._watchdog.working() if self._watchdog else nullcontext():
            return self._generator(run).complete(prompt_id)

    def _redis(self) -> redis.Redis:
        if self._client is None:
            self._client = broker.connect(settings.redis_url.reveal())
        return self._client

    def _generator(self, run: str) -> Generator:
        with self._lock:
            if run not in self._generators:
                self._generators[run] = Generator(
                    self._redis(), run, settings, self.name, self.capacity
                )
            return self._generators[run]

    def stop(self) -> None:
        for generator in self._generators.values():
            generator.stop()

    def leave(self) -> None:
        for generator in self._generators.values():
            generator.leave()


host = Host()


@app.task(name=TASK)
def generate(run: str, prompt_id: str) -> str:
    """Complete one prompt of a run. The message is a hint: the ledger says what is to be done."""
    return host.complete(run, prompt_id)


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:
    setup(settings.log_level, settings.secrets())


@signals.celeryd_after_setup.connect
def _learn_capacity(instance: Any, **_: Any) -> None:
    for name, value in (
        ("REDIS_URL", settings.redis_url),
        ("OPENROUTER_API_KEY", settings.api_key),
    ):
        if not value:
            raise SystemExit(f"{name} is not set: a worker needs it")
    host.begin(instance.concurrency)


@signals.heartbeat_sent.connect
def _beat(**_: Any) -> None:
    # From the main loop, every 2 s while it is connected to Redis: what a health check looks at.
    if settings.heartbeat_file:
        settings.heartbeat_file.touch()


@signals.worker_shutting_down.connect
def _stop(**_: Any) -> None:
    # Not in the signal's own frame: stopping takes locks that the interrupted code may hold.
    threading.Thread(target=host.stop, name="stopper").start()


@signals.worker_shutdown.connect
def _leave(**_: Any) -> None:
    host.leave()
