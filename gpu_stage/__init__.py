"""The GPU stage: completions to token ids, training set, hidden states, draft.

It meets the producer and the workers in a run's directory and in Redis, never in code.
`celery -A gpu_stage` finds the app here. It is loaded when it is asked for, so that the
commands run without Celery.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        from gpu_stage.tasks import app

        return app
    raise AttributeError(f"module 'gpu_stage' has no attribute {name!r}")
