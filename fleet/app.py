"""The Celery app: one configuration for whoever sends tasks and whoever runs them.

A task message is a hint that carries ids (the ledger decides what is done), so messages are
acknowledged when a task begins, results are not kept, and nothing is retried by Celery.
"""

from celery import Celery

from fleet.broker import broker_url

#: The queue, the task and the Compose service all bear the stage's name.
QUEUE = "generate"
TASK = "generate"


def make_app(redis_url: str) -> Celery:
    """A Celery app over the given Redis. Opens no connection."""
    app = Celery("eagle-fleet", broker=broker_url(redis_url), set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            # A message that is taken is gone: the ledger keeps what matters. It saves four Redis
            # commands a task, and kombu 5.7's emulation ends the worker with an AttributeError
            # when it cannot put messages back because Redis has died.
            "ack_emulation": False,
            "health_check_interval": 25,
            "socket_keepalive": True,
        },
    )
    if redis_url.startswith("unix:"):
        app.conf.broker_transport_options.pop("socket_keepalive")
    return app
