"""A run brought to its end: by a fleet that runs elsewhere, or by processes of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from fleet import broker
from fleet.app import make_app
from fleet.errors import ConfigError
from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from fleet.settings import Settings
from producer.account import Account
from producer.account_watch import AccountWatch
from producer.children import Workforce
from producer.console import Exit
from producer.feeder import Feeder
from producer.opening import Opened, open_ledger, tell_endpoints
from producer.outcome import conclude
from producer.sample_feeder import SampleFeeder
from producer.session import Session


@dataclass(frozen=True)
class Order:
    """What is to be bought."""

    config: RunConfig
    account: Account
    opened: Opened
    #: Only so many prompts of each dataset, from every endpoint alike; 0: the whole run.
    pilot: int = 0


def feed_run(order: Order, url: str, ledger: Ledger, workforce: Workforce | None = None) -> bool:
    """Feed an order until its end; False when it was aborted."""
    config, opened, evenly = order.config, order.opened, bool(order.pilot)
    open_ledger(config, ledger, opened, evenly=evenly)
    app = make_app(url)
    if order.pilot:
        feeder: Feeder = SampleFeeder(config, ledger, app, opened.rows, order.pilot)
    else:
        feeder = Feeder(config, ledger, app, opened.rows)
    tell = partial(tell_endpoints, config, ledger, opened.run_id, evenly)
    watch = AccountWatch(config, ledger, order.account, opened, tell)
    return Session(ledger, feeder, watch, workforce).run()


def run_here(order: Order, settings: Settings, workers: int) -> Exit:
    """Feed an order, with everything that it needs on this machine."""
    config = order.config
    with reach_ledger(config, settings, exclusive=True) as (url, ledger):
        environment = {
            "REDIS_URL": url,
            "OPENROUTER_API_KEY": settings.api_key.reveal(),
            "OPENROUTER_BASE_URL": order.account.base_url,
            # Read already; a file named by the user's environment must not win over it.
            "OPENROUTER_API_KEY_FILE": "",
            "REDIS_PASSWORD_FILE": "",
            "REDIS_PASSWORD": "",
        }
        workforce = Workforce(config, ledger, workers, environment)
        try:
            if not feed_run(order, url, ledger, workforce):
                return Exit.INTERRUPTED
            return Exit.OK if order.pilot else conclude(config, ledger, order.opened.rows)
        finally:
            workforce.kill()


@contextmanager
def reach_ledger(
    config: RunConfig, settings: Settings, *, must_exist: bool = False, exclusive: bool = False
) -> Iterator[tuple[str, Ledger]]:
    """The run's ledger and the URL of its Redis: REDIS_URL's, or the embedded one."""
    if url := settings.redis_url.reveal():
        client = broker.connect(url)
        broker.ping(client)
        yield url, _existing(Ledger(client, config.run.name), config, must_exist)
        return
    if must_exist and not (config.directory / "redis").is_dir():
        raise ConfigError(
            f"{config.path}: this run was never started here, and REDIS_URL is not set"
        )
    with broker.embedded(config.directory, exclusive=exclusive) as url:
        ledger = Ledger(broker.connect(url), config.run.name)
        yield url, _existing(ledger, config, must_exist)


def _existing(ledger: Ledger, config: RunConfig, must_exist: bool) -> Ledger:
    if must_exist and ledger.config() is None:
        raise ConfigError(f"{config.path}: Redis knows no run named {config.run.name!r}")
    return ledger
