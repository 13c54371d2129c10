"""Logging: one line per event that matters, as JSON where no person watches.

Invariant: a secret given to `setup` never reaches a handler, in a message, an argument or a
traceback, whoever logs it.
"""

import copy
import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import quote

from fleet.settings import Secret

#: Celery reports every task it receives and finishes: thousands a second here.
CHATTY = ("celery.worker.strategy", "celery.app.trace", "urllib3", "kombu", "amqp")


class Redacting(logging.Formatter):
    """Formats a record, then strikes out the secrets."""

    def __init__(self, secrets: Iterable[Secret], as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        spellings = {
            s for secret in secrets if secret.telling() for s in _spellings(secret.reveal())
        }
        self._secrets = sorted(spellings, key=len, reverse=True)
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        record = _whole(record)
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
        return json.dumps(entry, ensure_ascii=False, default=str)


def _whole(record: logging.LogRecord) -> logging.LogRecord:
    """A copy with its message made. Where the arguments do not fit the message, logging would
    print both to standard error, past every formatter.
    """
    whole = copy.copy(record)
    try:
        whole.msg = record.getMessage()
    except Exception as error:  # any argument's __str__ may have raised it
        whole.msg = f"{record.msg!r} does not fit its arguments {record.args!r}: {error}"
    whole.args = ()
    return whole


def _spellings(secret: str) -> set[str]:
    """The secret as text, in a URL, in `repr`, and each of them in JSON."""
    spellings = {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1]}
    for escape in (True, False):
        spellings |= {json.dumps(text, ensure_ascii=escape)[1:-1] for text in spellings}
    return spellings


def setup(level: str, secrets: Iterable[Secret]) -> None:
    """Send the root logger to standard error: lines for a terminal, JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(secrets, as_json=not sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
