"""How fast the feeder fills the queue, beside a plain loop of `apply_async`.

The feeder reads frozen prompts, puts each on the ledger of a real Valkey and sends its task
message; the loop only sends the messages. No worker runs: between the feeder's rounds the queue
is emptied, untimed.
"""

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import workload
from fleet import broker, run_config
from fleet.app import QUEUE, TASK, make_app
from fleet.ledger import Ledger
from fleet.run_config import RunConfig
from producer.endpoints import Endpoint
from producer.feeder import Feeder
from producer.freeze import freeze
from producer.opening import Opened, open_ledger
from producer.policy import judge, needs_of

#: As for a run with 2,000 in flight: 4,000 prompts a round.
IN_FLIGHT = 2000
ENDPOINT = Endpoint("chutes/int4", "Chutes", "int4", 0.44e-6, 2e-6)


def measure(prompts: int) -> dict[str, float]:
    """Prompts per second of the feeder, messages per second of the loop, their ratio."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        workload.write_prompts(folder / "prompts.jsonl", prompts)
        config = run_config.load(workload.write_run(folder, IN_FLIGHT))
        with broker.embedded(folder) as url:
            opened = open_run(config, Ledger(broker.connect(url), config.run.name))
            fed_per_s = _feed(config, url, opened, prompts)
            sent_per_s = _apply_async(url, prompts // 4)
    return {
        "prompts": prompts,
        "feeder_per_s": fed_per_s,
        "apply_async_per_s": sent_per_s,
        "ratio": fed_per_s / sent_per_s,
    }


def open_run(config: RunConfig, ledger: Ledger) -> Opened:
    """Freeze the run's one dataset and open its ledger, without an endpoint to ask."""
    summary = freeze(
        config.datasets[0],
        config.path.parent,
        config.directory,
        config.run.model,
        config.sampling,
        seen=set(),
    )
    needs = needs_of(config, tools=False)
    rows = {summary.dataset: summary.prompts}
    opened = Opened([summary], rows, judge([ENDPOINT], needs), datetime.now(UTC), needs, "bench")
    open_ledger(config, ledger, opened)
    return opened


def _feed(config: RunConfig, url: str, opened: Opened, prompts: int) -> float:
    ledger = Ledger(broker.connect(url), config.run.name)
    feeder = Feeder(config, ledger, make_app(url), opened.rows)
    seconds = 0.0
    while ledger.cursor("B1") < prompts:
        began = time.perf_counter()
        feeder.step()
        seconds += time.perf_counter() - began
        ledger.client.delete(QUEUE, ledger.keys.queued)
    return prompts / seconds


def _apply_async(url: str, count: int) -> float:
    app = make_app(url)

    @app.task(name=TASK)
    def generate(run: str, prompt_id: str) -> None:
        """Never runs."""

    ids = [f"{n:032x}" for n in range(count)]
    generate.apply_async(("bench", ids[0]))  # opens the connection
    began = time.perf_counter()
    for prompt_id in ids:
        generate.apply_async(("bench", prompt_id))
    return count / (time.perf_counter() - began)
