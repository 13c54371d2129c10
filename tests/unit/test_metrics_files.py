"""The alert rules and the dashboard speak of metrics that there are, and fire when they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.ledger import Ledger
from producer.metrics import PREFIX, RunCollector

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "metrics"
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="needs promtool (Debian: prometheus)"
)


@pytest.fixture
def names(ledger: Ledger) -> set[str]:
    """Every name that the exporter can say, with the suffixes of its type."""
    ledger.set_balance({"remaining_usd": 1.0, "usd_per_s": 0.0, "at": 0.0}, None)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix
        for family in RunCollector("r", ledger).collect()
        for suffix in suffixes.get(family.type, ("",))
    }


@pytest.mark.parametrize("file", ["alerts.yml", "alerts_test.yml", "dashboard.json"])
def test_rules_and_dashboard_name_what_the_exporter_serves(file: str, names: set[str]) -> None:
    """A metric that is renamed does not leave an alert that never fires."""
    used = set(re.findall(rf"{PREFIX}\w+", (FOLDER / file).read_text("utf-8")))
    assert used
    assert used <= names


def test_every_metric_is_documented(names: set[str]) -> None:
    """docs/metrics.md has every one."""
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    documented = set(re.findall(r"`(\w+?)(?:\{\w+\})?`", text))
    bare = {re.sub(r"_(bucket|sum|count)$", "", name.removeprefix(PREFIX)) for name in names}
    assert bare <= documented


def test_the_dashboard_has_no_two_panels_with_one_id() -> None:
    """Grafana shows only one of them."""
    panels = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before() -> None:
    """promtool runs the rules over series made for them."""
    command = ["promtool", "test", "rules", "docker/metrics/alerts_test.yml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_prometheus_takes_its_configuration() -> None:
    """promtool reads what the container is given."""
    command = ["promtool", "check", "config", "docker/metrics/prometheus.yml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
