"""Logging: one line per event that matters, as JSON where no person watches.

Invariant: a secret given to `setup` never reaches a handler, in a message, an argument or a
traceback, whoever logs it.
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from fleet.settings import Secret

#: Celery reports every task it receives and finishes: thousands a second here.
CHATTY = ("celery.worker.strategy", "celery.app.trace", "urllib3", "kombu", "amqp")


class Redacting(logging.Formatter):
    """Formats a record, then strikes out the secrets."""

    def __init__(self, secrets: Iterable[Secret], as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        plain = [secret.reveal() for secret in secrets if secret]
        self._secrets = plain + [json.dumps(text)[1:-1] for text in plain]
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        line = self._json(record) if self._as_json else super().format(record)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line

    def _json(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key in ("action", "run", "prompt_id", "dataset"):
            if (value := getattr(record, key, None)) is not None:
                entry[key] = value
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def setup(level: str, secrets: Iterable[Secret]) -> None:
    """Send the root logger to standard error: lines for a terminal, JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(secrets, as_json=not sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
