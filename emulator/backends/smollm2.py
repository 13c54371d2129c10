"""Real text from SmolLM2-135M-Instruct, with the counts of its own tokenizer.

Requests wait in a queue; one thread decodes up to `batch_size` of them together, and
takes in new ones between two tokens. The prompt is rendered by the model's chat
template, counted by its tokenizer; the end token counts as a completion token. The
same request draws the same random numbers, but bfloat16 sums depend on the batch, so
a text can differ from one run to the next.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
from typing import Any, NamedTuple

from ..completion import Completion, Prompt, PromptTooLong
from ..config import Backend as Settings
from . import BackendError
from .smollm2_weights import HINT, model_folder

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .decoder import Decoder, Row
except ImportError as error:
    raise BackendError(f"{error}: {HINT}") from error


class Waiting(NamedTuple):
    """A prompt in the queue."""

    prompt: Prompt
    prompt_ids: list[int]
    future: asyncio.Future[Completion]


#: Put into the queue, it ends the thread.
STOP = Waiting(None, [], None)  # type: ignore[arg-type]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class SmolLM2:
    """The backend with a model."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="smollm2", daemon=True)

    async def start(self) -> None:
        """Load (the first time: convert) the model; some seconds."""
        folder = model_folder()
        self.loop = asyncio.get_running_loop()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.context_length: int = model.config.max_position_embeddings
        self.spelling = Spelling(self.tokenizer)
        self.decoder = Decoder(model.eval(), self.tokenizer.eos_token_id)
        self.thread.start()

    async def stop(self) -> None:
        self.waiting.put(STOP)

    def begin(self, prompt: Prompt) -> asyncio.Future[Completion]:
        future: asyncio.Future[Completion] = self.loop.create_future()
        prompt_ids = self._encode(prompt)
        if len(prompt_ids) >= self.context_length:
            future.set_exception(PromptTooLong(self.context_length, len(prompt_ids)))
        else:
            self.waiting.put(Waiting(prompt, prompt_ids, future))
        return future

    def most_tokens(self, prompt: Prompt) -> tuple[int, int]:
        prompt_tokens = len(self._encode(prompt))
        return prompt_tokens, max(0, min(prompt.max_tokens, self.context_length - prompt_tokens))

    def _encode(self, prompt: Prompt) -> list[int]:
        messages = [
            {"role": message.get("role"), "content": _text(message.get("content"))}
            for message in prompt.messages
        ]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _work(self) -> None:
        """The thread: admit, step, retire, until told to stop."""
        torch.set_num_threads(self.settings.threads or max(1, cores() // 2))
        with torch.inference_mode():
            self._decode()

    def _decode(self) -> None:
        entries: dict[int, Waiting] = {}
        while (taken := self._take(len(entries))) is not STOP:
            if taken is not None:
                row = self._row(taken)
                entries[id(row)] = taken
                self.decoder.admit(row)
            else:
                self.decoder.step()
            self._check_stops()
            for row in self.decoder.retire():
                self._resolve(entries.pop(id(row)), row)

    def _take(self, running: int) -> Waiting | None:
        """The next request, if there is one and room for it; waits when nothing runs."""
        if running >= self.settings.batch_size:
            return None
        try:
            return self.waiting.get(block=not running)
        except queue.Empty:
            return None

    def _row(self, waiting: Waiting) -> Row:
        prompt, prompt_ids = waiting.prompt, waiting.prompt_ids
        drawn = f"{self.seed}/{prompt.messages_key}/{prompt.nth}"
        return Row(
            prompt_ids=prompt_ids,
            max_tokens=min(prompt.max_tokens, self.context_length - len(prompt_ids)),
            temperature=prompt.temperature,
            top_p=prompt.top_p,
            rng=random.Random(drawn if prompt.seed is None else prompt.seed),
            top_logprobs=prompt.top_logprobs,
            stop=prompt.stop,
        )

    def _check_stops(self) -> None:
        for row in self.decoder.rows:
            if row.stop and not row.finish:
                text = self.spelling.text(row.token_ids)
                if any(stop in text for stop in row.stop):
                    row.finish = "stop"

    def _resolve(self, waiting: Waiting, row: Row) -> None:
        completion = self._completion(row)
        self.loop.call_soon_threadsafe(_set, waiting.future, completion)

    def _completion(self, row: Row) -> Completion:
        ended = row.token_ids[-1] == self.decoder.end_id
        spoken = len(row.token_ids) - ended
        content = self.spelling.text(row.token_ids[:spoken])
        cuts = [content.index(stop) for stop in row.stop if stop in content]
        return Completion(
            content=content[: min(cuts)] if cuts else content,
            prompt_tokens=len(row.prompt_ids),
            completion_tokens=len(row.token_ids),
            finish_reason=row.finish,
            native_finish_reason=row.finish,
            logprobs=self.spelling.logprobs(row, spoken),
        )


class Spelling:
    """Token ids to bytes: each token of a byte-level vocabulary is a string of bytes."""

    def __init__(self, tokenizer: Any) -> None:
        byte_of = {letter: byte for byte, letter in enumerate(_byte_letters())}
        self.special = set(tokenizer.all_special_ids)
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.bytes = [
            token.encode() if index in self.special else bytes(byte_of[c] for c in token)
            for index, token in enumerate(tokens)
        ]

    def text(self, token_ids: list[int]) -> str:
        """The text, special tokens left out."""
        spelled = b"".join(self.bytes[i] for i in token_ids if i not in self.special)
        return spelled.decode("utf-8", "replace")

    def logprobs(self, row: Row, count: int) -> dict[str, Any] | None:
        """`choices[0].logprobs` for the first tokens, the end token left out."""
        if row.top_logprobs is None:
            return None
        entries = []
        for sampled in row.sampled[:count]:
            entry = self._entry(sampled.token_id, sampled.logprob)
            entry["top_logprobs"] = [self._entry(*pair) for pair in sampled.top]
            entries.append(entry)
        return {"content": entries, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self.bytes[token_id]
        token = spelled.decode("utf-8", "replace")
        return {"token": token, "logprob": logprob, "bytes": list(spelled)}


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def _set(future: asyncio.Future[Completion], completion: Completion) -> None:
    if not future.done():
        future.set_result(completion)
