"""`python -m benchmarks`: measure all, then write `README.md` and `results.json` beside this file.

--smoke runs everything at a tiny size and writes nothing; --only picks subjects, and takes the
others from the last `results.json`. Linux, two cores or more; the peers' environments are
installed first, the times of which count nowhere.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import (
    collector,
    emulator_load,
    feeder,
    hidden,
    machine,
    outage,
    peers,
    recover,
    report,
    resume,
    throughput,
    tokens,
)
from benchmarks.sizes import FULL, SMOKE, Sizes

HERE = Path(__file__).parent


def measure_throughput(sizes: Sizes) -> list[dict[str, Any]]:
    rows = []
    for case in sizes.throughput:
        for client in throughput.CLIENTS:
            row = throughput.measure(client, case)
            say(
                f"  {client} at {case.in_flight} ({case.mean_latency_s:g} s):"
                f" {row.per_s:,.0f}/s, {row.most_in_flight} held, {row.cpu_ms:.2f} ms CPU a request"
            )
            if row.trouble:
                say(f"    {row.kept} of {row.prompts} kept; {row.trouble}")
            rows.append(asdict(row))
    return rows


SUBJECTS: dict[str, Callable[[Sizes], Any]] = {
    "emulator": lambda sizes: emulator_load.measure(*sizes.emulator),
    "throughput": measure_throughput,
    "feeder": lambda sizes: feeder.measure(sizes.feeder_prompts),
    "collector": lambda sizes: collector.measure(sizes.completions),
    "outage": lambda sizes: outage.measure(sizes.outage_s),
    "tokens": lambda sizes: tokens.measure(sizes.token_rows),
    "recover": lambda sizes: recover.measure(sizes.target_rows),
    "hidden": lambda sizes: hidden.measure(sizes.hidden_rows),
    "resume": lambda sizes: resume.measure(*sizes.resume, sizes.resume_limit_s),
}


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; writes nothing")
    parser.add_argument("--only", choices=SUBJECTS, action="append", default=[])
    arguments = parser.parse_args()
    file = HERE / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    results["machine"] = machine.facts()
    if "throughput" in (arguments.only or SUBJECTS):
        results["peers"] = {name: peers.version_of(name) for name in peers.ENVIRONMENTS}
    for name in arguments.only or SUBJECTS:
        say(name)
        began = time.monotonic()
        results[name] = SUBJECTS[name](SMOKE if arguments.smoke else FULL)
        say(f"  {time.monotonic() - began:.0f} s")
        if not arguments.smoke:
            file.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.smoke:
        print(json.dumps(results, indent=2))
        return
    if missing := SUBJECTS.keys() - results.keys():
        say(f"README.md is written once these are measured too: {', '.join(sorted(missing))}")
        return
    (HERE / "README.md").write_text(report.page(results), encoding="utf-8")
    say(f"wrote {HERE / 'README.md'}")


if __name__ == "__main__":
    main()
