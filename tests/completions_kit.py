"""A run with completions on disk, as the collector writes them, and a model folder for it.

The model is a tokenizer of single bytes with ChatML, so that a text of n bytes has n tokens.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fleet.schemas import COMPLETIONS
from gpu_stage.samples import samples_of
from workers import parts

DATA = Path(__file__).parents[2] / "shared" / "data"
T0_MS = 1_796_100_000_000
TEMPLATE = """
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QUESTION = "Why is the sky blue?"
#: Tokens of the prompt that `QUESTION` alone makes.
PROMPT_TOKENS = len(f"|user\n{QUESTION}|\n|assistant\n")


def write_model(folder: Path) -> Path:
    """A model folder: its tokenizer has a token for every byte, and three of ChatML."""
    letters = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_run(folder: Path, model: Path, more: str = "") -> Path:
    """A run's directory with its run file; `more` are tables behind the usual ones."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"""
[run]
name = "r"
model = "author/model"
target = "{model}"

[[datasets]]
name = "B3"
path = "prompts.jsonl"
{more}"""
    (folder / "run.toml").write_text(text)
    return folder


def allow(run: Path, *providers: str) -> None:
    """A manifest that says who might answer at one more start."""
    path = run / "manifest.json"
    sessions = json.loads(path.read_text())["sessions"] if path.exists() else []
    endpoints = [{"provider_name": name, "kept": True} for name in providers]
    endpoints.append({"provider_name": "Refused", "kept": False})
    path.write_text(json.dumps({"sessions": [*sessions, {"endpoints": endpoints}]}))


def row(number: int, text: str = "It scatters.", off: int = 0, **fields: Any) -> dict[str, Any]:
    """A completion of `QUESTION`, billed `off` tokens more than it has.

    Args:
        fields: other fields of the response's choice, or columns.
    """
    provider = fields.pop("provider", "Alpha")
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    columns = {name: fields.pop(name) for name in list(fields) if name in COMPLETIONS.names[2:]}
    choice |= fields | {k: v for k, v in columns.items() if k in choice}
    tokens = len(text.encode()) + (choice["finish_reason"] == "stop") + off
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    reply = {"provider": provider, "choices": [choice], "usage": usage}
    return {
        "prompt_id": f"{number:032x}",
        "turn": 0,
        "messages": json.dumps([{"role": "user", "content": QUESTION}]),
        "content": text,
        "finish_reason": choice["finish_reason"],
        "provider": provider,
        "attempts": 1,
        "latency_s": 1.0,
        "requested_at": T0_MS,
        "completed_at": T0_MS + number,
        "worker": "w",
        "endpoint": "alpha/int4",
        "cost_usd": 0.001,
        "response": json.dumps(reply),
    } | columns


def write_part(run: Path, rows: Sequence[dict[str, Any]], dataset: str = "B3") -> Path:
    """One more part of completions."""
    folder = run / f"completions/dataset={dataset}"
    number = len(list(folder.glob("*.parquet"))) + 1
    values = [tuple(one.get(name) for name in COMPLETIONS.names) for one in rows]
    span = (T0_MS, number), (T0_MS, number)
    return parts.write(folder, COMPLETIONS, values, span, 1000).path


def samples(run: Path, part: Path) -> list[dict[str, Any]]:
    """The rows of the samples of a part."""
    found: list[dict[str, Any]] = pq.read_table(
        samples_of(run, part), partitioning=None
    ).to_pylist()
    return found
