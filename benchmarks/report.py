"""`results.json` → `README.md`. Sentences state what was measured; no figure is typed by hand."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import recover_report

NAMES = {
    "fleet": "eagle-fleet, 2 worker processes",
    "aiohttp": "bare aiohttp loop",
    "openai": "openai client, async loop",
    "curator": "curator",
}

HEAD = """# Benchmarks

<!-- Written by `python -m benchmarks`; edit benchmarks/report.py instead. -->

    {command}

{date}, commit `{commit}`, {cores} × {cpu}, {memory_gb} GB, Linux {kernel}, Python {python};
{versions}. Load average before the start: {load_before}.

All in one run on one machine: the emulator, and Redis where there is one, share the cores with
the client that is measured. So compare the ratios. Nothing here says how fast OpenRouter is.
"""

THROUGHPUT = """## Requests per second

Every client makes the same prompts with the same body. An answer has 300 tokens in the mean;
how long it takes is drawn (lognormal, at most five times the mean), with a keep-alive every second.
At 2,000 in flight and 1 s the cores are the limit: what is held follows from the rate. The last
table has answers as slow as real ones, so that 2,000 in flight are an eighth of that rate.

* **fleet** is `producer run` as it is installed: two worker processes, Valkey with its
  append-only file, collector to Parquet, feeder, money and token budget held. It starts at 256
  requests in flight and doubles from there, and that is in its figures.
* **aiohttp** is what Python can do at the least: no retry, no record, answers kept in memory.
* **openai** {openai} is `AsyncOpenAI` with its defaults and a semaphore.
* **curator** {curator} with `max_concurrent_requests`, its limits per minute raised out of the way.

"per second" runs from the first request to the last response, as the emulator saw them; the last
answers of a run come up to five times the mean after the last request. "middle" is between the
20th and the 80th percentile of the responses. CPU is user and system time of all processes of
the client, Redis included, from the first request to the client's end; memory the highest sum
of their resident sets, Redis not included. "× fleet" is the fleet's rate over that client's
(above 1: the fleet is faster).
"""

SECTIONS = """## Feeder

{feeder_per_s:,.0f} prompts a second, read from the frozen file, put on the ledger and sent, in
rounds of 4,000. A plain loop of `apply_async`, which only sends: {apply_async_per_s:,.0f}
messages a second. Ratio {ratio:.2f}.
"""

COLLECTOR = """## Collector

{per_s:,.0f} completions of 4 KB a second to Parquet, {cpu_us:.0f} µs CPU each, {peak_mb:.0f} MB at
its peak, {parquet_mb:.0f} MB written. A loop that appends JSON lines: {lines_per_s:,.0f} a second,
{lines_mb:.0f} MB. Ratio {ratio:.2f}. Starting the interpreter is in the collector's time.
"""

TOKENS = """## Completions to token ids

{rows:,} completions of {mean:,.0f} tokens in the mean, prompts included, in part files as the
collector writes them; Kimi-K2.5's tokenizer, two cores; the median of {repeats}.
Load average before: {load_before}.

* **gpu-stage tokens** reads Parquet, tokenises, verifies and writes Parquet: two processes, from
  the start of the command to its end, {seconds:.1f} s. All processes together had
  {peak_mb:,.0f} MB at their peak.
* **tiktoken** is the limit: `encode_ordinary_batch` in two threads over the same texts in memory.
  Of the limit the command reaches {of_limit:.0%} by the clock, start included, and
  {cpu_of_limit:.0%} by CPU time, which other work on the machine disturbs less.
* **loop** is what one would write with transformers: rows from Parquet, chat template, fast
  tokenizer, ids to Parquet, in one process, over the first 1,000 rows; loading the tokenizer is
  not in its time.
"""

EMULATOR = """## Emulator

Is the harness the limit? The emulator alone on one core, wrk on another with {connections:,}
connections: {per_s:,.0f} responses a second, {cpu_us:.0f} µs CPU each, {core_share:.0%} of its
core.
"""

RESUME = """## Starting a large run again

{prompts:,} prompts, {done:,} of them done; Valkey holds {valkey_mb:.0f} MB. Seconds from
`producer run` to its first new request:
"""


HIDDEN = """## Hidden states

{rows} sampled completions of SmolLM2 with their prompts, {tokens:,} tokens, in bf16, the median of
three turns. **loop** pads batches of {batch} to their longest sample and asks transformers for
`output_hidden_states`; **resident** packs samples and keeps four states; **streamed** has one layer
in memory and the next on its way.
"""
HIDDEN_FILES = """
States of that size to disk and back, `fsync` included, page cache warm. **plain** is `write` and
`mmap` of the same bytes; **torch.save** one file a sample; **checked** reads for
the checksum alone.
"""
OUTAGE = """## An endpoint goes down and comes back

Three endpoints, {in_flight} requests in flight, answers of a second. For {seconds:.0f} s the one
that serves most answers 429 to everything. Answers a second before, meanwhile (from the first
second on) and after it; the requests that it refused; seconds until it serves its part again.
The openai client has that endpoint pinned by hand and its own retries. Under `openrouter` the
emulator, like OpenRouter, tries the next endpoint itself, and the fleet sees nothing.
"""


def page(results: dict[str, Any]) -> str:
    """The whole README."""
    parts = [_head(results["machine"]), _throughput(results)]
    parts.append(SECTIONS.format(**results["feeder"]))
    parts.append(COLLECTOR.format(**results["collector"]))
    parts.append(_tokens(results["tokens"]))
    parts.append(_recover(results["recover"]))
    parts.append(_hidden(results["hidden"]))
    parts.append(_outage(results["outage"]))
    parts.append(_resume(results["resume"]))
    emulator = results["emulator"]
    parts.append(
        EMULATOR.format(**emulator) if emulator else "## Emulator\n\nNot measured: no wrk here.\n"
    )
    return "\n".join(parts)


def _head(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return HEAD.format(**machine | {"versions": versions})


def _throughput(results: dict[str, Any]) -> str:
    parts = [THROUGHPUT.format(**results["peers"])]
    rows = results["throughput"]
    for _, case in itertools.groupby(rows, lambda row: (row["in_flight"], row["mean_latency_s"])):
        parts.append(_case(list(case)))
    parts.append(_roles([row for row in rows if row["client"] == "fleet"]))
    return "\n".join(parts)


def _case(rows: list[dict[str, Any]]) -> str:
    fleet = next(row for row in rows if row["client"] == "fleet")
    head = (
        "client", "per second", "× fleet", "middle", "× fleet", "most in flight",
        "CPU ms/request", "memory MB", "whole command s", "emulator cores", "kept",
    )  # fmt: skip
    body = [
        (
            NAMES[row["client"]],
            f"{row['per_s']:,.0f}",
            _ratio(fleet["per_s"], row["per_s"]),
            f"{row['middle_per_s']:,.0f}",
            _ratio(fleet["middle_per_s"], row["middle_per_s"]),
            f"{row['most_in_flight']:,}",
            f"{row['cpu_ms']:.2f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['wall_s']:.1f}",
            f"{row['emulator_core']:.2f}",
            f"{row['kept']:,}" + (f" ({row['trouble']})" if row["trouble"] else ""),
        )
        for row in rows
    ]
    title = (
        f"### {fleet['in_flight']:,} in flight, answers of {fleet['mean_latency_s']:g} s, "
        f"{fleet['prompts']:,} prompts\n\n"
        f"Most that can be had: {fleet['in_flight'] / fleet['mean_latency_s']:,.0f} a second.\n\n"
    )
    return title + _table(head, body)


def _roles(rows: list[dict[str, Any]]) -> str:
    """Where the fleet's CPU time goes."""
    roles = ("worker", "collector", "producer", "valkey")
    head = ("in flight", *(f"{role} ms" for role in roles), "Valkey MB")
    body = [
        (
            f"{row['in_flight']:,} ({row['mean_latency_s']:g} s)",
            *(f"{row['roles'].get(role, 0):.2f}" for role in roles),
            f"{row['valkey_mb']:.0f}",
        )
        for row in rows
    ]
    title = "### The fleet's CPU milliseconds a request, by process, their start included\n\n"
    return title + _table(head, body)


def _outage(outage: dict[str, Any]) -> str:
    body = [
        (
            "openai, pinned" if row["client"] == "openai" else f"fleet, `{row['client']}`",
            f"{row['before_per_s']:,.0f}",
            f"{row['during_per_s']:,.0f}",
            f"{row['during_per_s'] / row['before_per_s']:.2f}" if row["before_per_s"] else "–",
            f"{row['after_per_s']:,.0f}",
            f"{row['refused']:,}",
            f"{row['regained_s']:.1f}" if row["regained_s"] else "not in time",
        )
        for row in outage["clients"]
    ]
    head = ("client", "before", "meanwhile", "ratio", "after", "refused", "regained after s")
    return OUTAGE.format(**outage) + "\n" + _table(head, body)


def _tokens(tokens: dict[str, Any]) -> str:
    if not tokens:
        return "## Completions to token ids\n\nNot measured: no tokenizer in ../shared/data here.\n"
    rates = (
        ("gpu-stage tokens", tokens["per_s"]),
        ("tiktoken, the limit", tokens["limit_per_s"]),
        ("loop", tokens["loop_per_s"]),
    )
    body = [(name, f"{rate:,.0f}", _ratio(tokens["per_s"], rate)) for name, rate in rates]
    text = TOKENS.format(**tokens, mean=tokens["tokens"] / tokens["rows"])
    return text + "\n" + _table(("", "tokens per second", "× fleet"), body)


def _recover(recover: dict[str, Any]) -> str:
    text = recover_report.text(recover)
    if not recover:
        return text
    found = _table(recover_report.HEAD, recover_report.body(recover))
    sure = _table(recover_report.CUT_HEAD, recover_report.cuts(recover))
    return f"{text}\n{found}{recover_report.CUTS}\n{sure}"


def _hidden(hidden: dict[str, Any]) -> str:
    if not hidden:
        return "## Hidden states\n\nNot measured: no samples in ../shared/data here.\n"
    ways, files = hidden["ways"], hidden["files"]
    speeds = [
        (
            name,
            f"{way['per_s']:,.0f}",
            _ratio(ways["resident"]["per_s"], way["per_s"]),
            f"{way['peak_mb']:,.0f}",
        )
        for name, way in ways.items()
    ]
    disk = [
        (
            name,
            f"{file['write_gb_s']:.2f}",
            _ratio(files["shard"]["write_gb_s"], file["write_gb_s"]),
            f"{file['read_gb_s']:.2f}",
            _ratio(files["shard"]["read_gb_s"], file["read_gb_s"]),
        )
        for name, file in files.items()
    ]
    return "\n".join(
        (
            HIDDEN.format(**hidden, tokens=ways["resident"]["tokens"]),
            _table(("", "tokens per second", "resident over it", "MB above idle"), speeds),
            HIDDEN_FILES,
            _table(("", "write GB/s", "shard over it", "read GB/s", "shard over it"), disk),
        )
    )


def _resume(resume: dict[str, Any]) -> str:
    body = [
        (
            f"{start['cursor']:,}" if start["cursor"] else "lost: every prompt is looked up",
            f"{start['first_request_s']:.1f}"
            if start["first_request_s"]
            else f"none within {start['limit_s']:.0f}",
        )
        for start in resume["starts"]
    ]
    return RESUME.format(**resume) + "\n" + _table(("place reached", "seconds"), body)


def _ratio(fleet: float, other: float) -> str:
    return f"{fleet / other:.2f}" if other else "–"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
