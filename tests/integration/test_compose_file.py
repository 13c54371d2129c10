"""The Compose file holds what it promises. Read as text: no Docker is needed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.run_config import Run
from workers.openrouter import IDLE_TIMEOUT_S

ROOT = Path(__file__).parents[2]
BASES = {"python:3.11-slim-bookworm", "redis:7-bookworm"}
OURS = "eagle-fleet"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text("utf-8")

each_service = pytest.mark.parametrize("name", SERVICES)


def default(text: str) -> str:
    """What a value is when no variable is set: `${A:-b}` → `b`."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def command(name: str) -> str:
    given = SERVICES[name]["command"]
    return given if isinstance(given, str) else " ".join(given)


def test_the_services_are_the_ones_the_docs_name() -> None:
    """A stage's verb, or the service's own name, is its only name."""
    needed = {"setup", "redis", "worker", "collector", "producer", "flower"}
    by_profile = {"emulator": "emulator", "metrics": "metrics", "gpu": "gpu"}
    by_profile |= dict.fromkeys(("prometheus", "grafana"), "metrics")
    assert {n: s["profiles"] for n, s in SERVICES.items() if "profiles" in s} == {
        name: [profile] for name, profile in by_profile.items()
    }
    assert set(SERVICES) - set(by_profile) == needed


def test_only_two_base_images_are_pulled() -> None:
    """All but the profiles `metrics` and `gpu` is built on two public images."""
    stages = dict(re.findall(r"^FROM (\S+)(?: AS (\w+))?$", DOCKERFILE, re.MULTILINE))
    own = (s for s in SERVICES.values() if s.get("profiles") not in (["metrics"], ["gpu"]))
    images = {service["image"] for service in own} - {OURS}
    assert set(stages) | images == BASES


def test_our_image_is_never_looked_for_in_a_registry() -> None:
    """One service builds it; the others take what is there."""
    ours = {name: s for name, s in SERVICES.items() if s["image"] == OURS}
    builders = [name for name, service in ours.items() if "build" in service]
    assert builders == ["setup"]
    assert all(s["pull_policy"] == "never" for n, s in ours.items() if n not in builders)


def test_a_stopped_worker_has_time_to_finish_its_requests() -> None:
    """The grace period exceeds the longest request, and SIGTERM is what begins it."""
    longest_s = Run(name="any", model="a/b").deadline_s + IDLE_TIMEOUT_S
    worker = SERVICES["worker"]
    assert int(default(worker["stop_grace_period"]).removesuffix("s")) > longest_s
    assert worker["stop_signal"] == "SIGTERM"
    assert isinstance(worker["command"], list), "a shell in between would keep the signal"
    assert "SIGQUIT" not in str(worker)


def test_the_grace_that_setup_checks_is_the_worker_s() -> None:
    """One grace and one margin, so that a longer deadline in a run file is noticed."""
    setup = (ROOT / "docker" / "setup.py").read_text("utf-8")
    assert f"\nIDLE_TIMEOUT_S = {IDLE_TIMEOUT_S}\n" in setup
    grace = SERVICES["setup"]["environment"]["WORKER_GRACE_S"]
    assert SERVICES["worker"]["stop_grace_period"] == f"{grace}s"


def test_a_worker_can_be_scaled() -> None:
    """Nothing of a worker can exist only once."""
    assert not {"container_name", "ports", "hostname"} & set(SERVICES["worker"])


@each_service
def test_no_port_is_published_beyond_loopback(name: str) -> None:
    """Whatever is published by default answers this machine only."""
    for port in SERVICES[name].get("ports", []):
        assert default(port).startswith("127.0.0.1:")


def test_redis_is_published_nowhere() -> None:
    """The ledger is for the containers of this project."""
    assert "ports" not in SERVICES["redis"]


@each_service
def test_a_service_is_restarted_and_watched_or_says_why_not(name: str) -> None:
    """Every service has a restart policy, and a health check or a reason for none."""
    service = SERVICES[name]
    assert service["restart"] in ("unless-stopped", "on-failure", "no")
    assert ("healthcheck" in service) != ("x-no-healthcheck" in service)


@each_service
def test_a_service_has_few_rights(name: str) -> None:
    """No root, no capability, no writable root file system, bounded logs."""
    service = SERVICES[name]
    uid, _, gid = default(service["user"]).partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"]["max-size"]


def test_redis_has_a_password_keeps_all_and_evicts_nothing() -> None:
    """The ledger survives, and is not open to whoever reaches it."""
    config = (ROOT / "docker" / "redis.conf").read_text("utf-8").splitlines()
    wanted = {"appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"}
    assert wanted <= set(config)
    assert 'requirepass "$$(cat /fleet/setup/redis_password)"' in command("redis")
    assert "maxmemory $$REDIS_MAXMEMORY" in command("redis")


def test_flower_has_a_password_and_bounds() -> None:
    """Flower is read-only, asks for a password and holds a bounded number of tasks."""
    text = command("flower")
    assert 'FLOWER_BASIC_AUTH="fleet:$$(cat /fleet/setup/flower_password)"' in text
    assert "--read_only" in text
    assert re.search(r"--max_tasks=\d+", text)


def test_no_password_and_no_key_stands_in_the_files() -> None:
    """Passwords are given or made; none has a default that others know."""
    environment = SERVICES["setup"]["environment"]
    for name in ("REDIS_PASSWORD", "FLOWER_PASSWORD"):
        assert environment[name] == f"${{{name}:-}}"
    example = (ROOT / ".env.example").read_text("utf-8")
    assert not re.search(r"^#?\w*(PASSWORD|API_KEY)=.+", example, re.MULTILINE)


def test_only_what_buys_gets_the_key() -> None:
    """Collector, Flower and emulator never see it."""
    holders = {n for n, s in SERVICES.items() if "OPENROUTER_API_KEY" in s.get("environment", {})}
    assert holders == {"setup", "worker", "producer"}
    assert {n for n, s in SERVICES.items() if "secrets" in s} == holders


def test_every_variable_is_in_the_example() -> None:
    """`.env.example` names each variable that the Compose file reads."""
    read = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text("utf-8")))
    example = (ROOT / ".env.example").read_text("utf-8")
    assert read == set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))


def test_the_demo_talks_to_the_emulator_only() -> None:
    """The bundled run file names the emulator, whatever key is in the environment."""
    text = (ROOT / "docker" / "demo" / "run.toml").read_text("utf-8")
    assert 'base_url = "http://emulator:8080/api/v1"' in text
    assert SERVICES["emulator"]["profiles"] == ["emulator"]
