"""`manifest.json`: what was true at each start of a run, and who came up while it ran.

In: sessions, verdicts on endpoints. Out: the file, whole or as it was. Several feeders of one run
may write it at once: each waits for the other, so that no session is lost.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.errors import ConfigError
from producer.policy import Verdict

NAME = "manifest.json"


def add_session(directory: Path, session: dict[str, Any]) -> Path:
    """Append a start of the run."""
    with _changed(directory) as manifest:
        manifest["sessions"].append(session)
    return directory / NAME


def note_newcomers(directory: Path, verdicts: Sequence[Verdict]) -> None:
    """Add to the last start the endpoints that may be asked now and might not when it looked."""
    with _changed(directory) as manifest:
        if not manifest["sessions"]:
            return
        session = manifest["sessions"][-1]
        newcomers = session.setdefault("newcomers", [])
        known = {one["tag"] for one in (*session["endpoints"], *newcomers) if one["kept"]}
        found = [v.record() for v in verdicts if v.kept and v.endpoint.tag not in known]
        at = datetime.now(UTC).isoformat(timespec="seconds")
        newcomers += [record | {"read_at": at} for record in found]


@contextmanager
def _changed(directory: Path) -> Iterator[dict[str, Any]]:
    """The manifest, written when the block ends."""
    path = directory / NAME
    with (directory / f".{NAME}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = _read(path)
        yield manifest
        partial = path.with_suffix(".json.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"sessions": []}
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); move it away") from None
