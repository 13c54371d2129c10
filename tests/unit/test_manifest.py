"""`manifest.json` when several feeders write it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from producer.manifest import add_session


def test_feeders_that_start_at_once_lose_no_session(tmp_path: Path) -> None:
    """Each waits for the other; what they leave is whole."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add_session(tmp_path, {"number": n}), range(40)))
    sessions = json.loads((tmp_path / "manifest.json").read_text())["sessions"]
    assert sorted(one["number"] for one in sessions) == list(range(40))
