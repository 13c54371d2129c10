"""The fleet's workers: the Celery task, the OpenRouter client, pacing, and the collector.

`celery -A workers` finds the app here. It is loaded when it is asked for, so that the
collector runs without Celery.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        from workers.tasks import app

        return app
    raise AttributeError(f"module 'workers' has no attribute {name!r}")
