"""An emulator process for tests: started, waited for, asked, ended.

    with launch('[[faults]]\\nkind = "server_500"\\nrate = 0.1') as emulator:
        requests.post(f"{emulator.url}/chat/completions", ...)
        assert emulator.books()["billed_requests"] == 1

Ready is when the process prints its line; no polling. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINE = "emulator listening on "


class Running:
    """A running emulator and its control plane."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        #: Base of the API: `http://127.0.0.1:PORT/api/v1`.
        self.url = url

    def books(self) -> dict[str, Any]:
        """Totals: `total_usd`, `billed_requests`, `outcomes`, `max_in_flight`, ..."""
        totals: dict[str, Any] = self._call("books")
        return totals

    def billed(self, since: int = 0) -> list[dict[str, Any]]:
        """Every billed request, oldest first."""
        entries: list[dict[str, Any]] = self._call(f"books/requests?since={since}")
        return entries

    def topup(self, usd: float) -> None:
        self._call("topup", {"usd": usd})

    def set_faults(self, *faults: dict[str, Any]) -> None:
        """Replace all faults."""
        self._call("faults", list(faults))

    def change_endpoint(self, tag: str, **fields: Any) -> None:
        """Change an endpoint's status, price, honesty, ..."""
        self._call(f"endpoints/{tag}", fields)

    def _call(self, path: str, body: Any = None) -> Any:
        url = f"{self.url.removesuffix('/api/v1')}/emulator/{path}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def launch(
    config: str = "", *, books: Path | None = None, port: int = 0, stderr: Any = None
) -> Iterator[Running]:
    """Start `python -m emulator` with this TOML text; SIGTERM and wait at the end."""
    with tempfile.TemporaryDirectory(prefix="emulator-") as folder:
        path = Path(folder) / "emulator.toml"
        path.write_text(config)
        command = [sys.executable, "-m", "emulator", "--config", str(path), "--port", str(port)]
        if books is not None:
            command += ["--books", str(books)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            yield Running(process, _url(process))
        finally:
            process.terminate()
            process.wait(timeout=30)
            if process.stdout is not None:
                process.stdout.close()


def _url(process: subprocess.Popen[str]) -> str:
    """The URL in the ready line; RuntimeError when the process ends without one."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(LINE):
            return line.removeprefix(LINE).strip()
    raise RuntimeError(f"the emulator ended with exit code {process.wait()} before it was ready")
