"""The one job that every client is given, and the service that answers it.

`count` different prompts of about 60 words; a request body with the fields that the fleet
sends; an OpenRouter (the emulator) whose answers have 300 tokens and take a second or more.
"""

import json
import random
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from emulator.launch import Running, launch

MODEL = "moonshotai/kimi-k2.5"
API_KEY = "sk-or-v1-benchmark"
#: Every field of a request body but the messages: what the fleet sends for `RUN_FILE`.
FIELDS: dict[str, Any] = {
    "model": MODEL,
    "temperature": 1.0,
    "top_p": 1.0,
    "max_tokens": 4096,
    "provider": {"require_parameters": True},
}
PROMPT_WORDS = 60
MEAN_LATENCY_S = 1.0

#: Budget and cap are set, so that they cost what they cost, and never reached.
RUN_FILE = """
[run]
name = "bench"
model = "{model}"
cap_usd = 1_000_000.0
concurrency = {in_flight}
deadline_s = 120

[sampling]
temperature = 1.0
top_p = 1.0
max_tokens = 4096

[[datasets]]
name = "B1"
path = "prompts.jsonl"
budget_tokens = 1_000_000_000
"""


def emulator(mean_latency_s: float) -> str:
    """The emulator's configuration. Keep-alives every second, as OpenRouter sends them."""
    return f"""
seed = 1
keepalive_s = 1.0
[backend]
kind = "synthetic"
completion = {{ kind = "lognormal", mean_tokens = 300, spread = 0.5, max_tokens = 2000 }}
[backend.latency]
kind = "lognormal"
mean_s = {mean_latency_s}
spread = 0.5
max_s = {5 * mean_latency_s}
"""


def service(mean_latency_s: float = MEAN_LATENCY_S) -> AbstractContextManager[Running]:
    """The emulator, in a process of its own. Its words on clients that were cut off are dropped."""
    return launch(emulator(mean_latency_s), stderr=subprocess.DEVNULL)


def messages(count: int) -> list[list[dict[str, str]]]:
    """`count` different conversations of one user message, the same at each call."""
    rng = random.Random(7)
    words = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("a", "ane", "or", "ith", "ule")]
    return [
        [{"role": "user", "content": f"{n}: " + " ".join(rng.choices(words, k=PROMPT_WORDS))}]
        for n in range(count)
    ]


def write_prompts(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for conversation in messages(count):
            file.write(json.dumps({"messages": conversation}) + "\n")


def write_run(folder: Path, in_flight: int) -> Path:
    """A run file for the prompts in `folder`."""
    path = folder / "run.toml"
    path.write_text(RUN_FILE.format(model=MODEL, in_flight=in_flight), encoding="utf-8")
    return path
