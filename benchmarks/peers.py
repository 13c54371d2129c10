"""The peers' own Python environments, made when they are first needed.

Two, because curator holds the openai package at an older version than people use by itself.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Environment, by the client that runs in it.
ENVIRONMENTS = {"aiohttp": "loops", "openai": "loops", "curator": "curator"}


def python(client: str) -> Path:
    """The interpreter of a peer's environment; installs it if it is not as required."""
    name = ENVIRONMENTS[client]
    folder, wanted = HERE / ".venv" / name, HERE / f"requirements-{name}.txt"
    stamp, interpreter = folder / "installed.txt", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"installing {wanted.name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)]
        subprocess.run(pip, check=True)
        stamp.write_text(wanted.read_text())
    return interpreter


def version_of(client: str) -> str:
    """The version of the client's package."""
    package = {"curator": "bespokelabs-curator"}.get(client, client)
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [str(python(client)), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
