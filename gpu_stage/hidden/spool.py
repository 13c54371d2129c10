"""A bounded folder of shards, between extraction, which fills it, and training, which empties it.

Extraction waits where a shard would not fit; training deletes a shard once no epoch needs it any
more, and leaves its index, which says that the shard was made. So either side may be killed and
started again: what is there is known from the files alone.
"""

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from fleet.errors import ConfigError

POLL_S = 1.0
LOCK = ".spool.lock"


def used_bytes(folder: Path) -> int:
    """Bytes of all shards, unfinished ones included."""
    sizes = 0
    for path in folder.rglob("*.safetensors*"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:  # consumed, or finished under its name, meanwhile
            continue
    return sizes


def reserve(
    folder: Path,
    most_bytes: int,
    need_bytes: int,
    take: Callable[[], object],
    wait: Callable[[], None],
) -> None:
    """Wait until `need_bytes` fit, then take them.

    Args:
        most_bytes: of the folder; 0: off.
        take: makes them count, by giving the unfinished shard its length.
        wait: told whenever there is no room.

    Raises:
        ConfigError: they never will.
    """
    if not most_bytes:
        take()
        return
    if need_bytes > most_bytes:
        raise ConfigError(
            f"{folder}: a shard takes {need_bytes:,} bytes and the spool has {most_bytes:,}; give "
            "--spool more, or smaller shards with --shard-size"
        )
    with (folder / LOCK).open("a") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if used_bytes(folder) + need_bytes <= most_bytes:
                    take()
                    return
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
            wait()
            time.sleep(POLL_S)


def consume(shard: Path) -> None:
    """Delete a shard that no epoch needs any more; its index stays. Twice does nothing."""
    shard.unlink(missing_ok=True)
