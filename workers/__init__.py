"""The fleet's workers: the Celery task, the OpenRouter client, pacing, and the collector."""

from workers.tasks import app

__all__ = ["app"]
