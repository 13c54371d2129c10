"""Text without a model: words drawn by a hash of the messages, for load.

Counting rule. Completion: each word is one token, as each word of the list with its
leading space is one token of the Kimi vocabulary; the end of the reasoning is one and
the end of the turn is one. Prompt: 4 tokens a message, one for each 4 characters of
its text (rounded up), and 4 for the generation prompt.
"""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate
from typing import Any

from ..chance import draw
from ..completion import Completion, Prompt
from ..config import Backend as Settings

_WORD_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have had "
    "which one you were all her she there would their we him been has when who will no more if "
    "out so up said what its about than into them can only other time new some could these two "
    "may first then do any like my now over such our man me even most made after also did many "
    "before must through years where much your way well down should because each just those "
    "people how too little state good very make world still own see men work long here get both "
    "between life being under three never know same last another while us off might great go "
    "come since against right came take used himself few house use during without again place "
    "around however home small found general thought part school number until always away "
    "something fact water less public put thing almost hand enough far took head yet better set "
    "told nothing night end why called eyes find going look asked later knew point next program "
    "city business give group toward days young let room word side social given present several "
    "order possible rather second face per among form important often things looked early white "
    "case become large need big four within felt children along saw best church ever least power "
    "light family"
)
WORDS = _WORD_TEXT.split()

_RING = random.Random(0).choices(WORDS, k=1 << 15)
_TEXT = "".join(f" {word}" for word in _RING)
_OFFSETS = list(accumulate((len(word) + 1 for word in _RING), initial=0))


def words(start: int, count: int) -> str:
    """`count` words with their leading spaces, from place `start` of the endless text."""
    start %= len(_RING)
    end = start + count
    if end <= len(_RING):
        return _TEXT[_OFFSETS[start] : _OFFSETS[end]]
    return _TEXT[_OFFSETS[start] :] + words(0, end - len(_RING))


def prompt_tokens(messages: list[dict[str, Any]]) -> int:
    """The stated rule; content may be text, a list of parts, or null."""
    total = 4
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text") or "" for part in content)
        total += 4 + (len(content) + 3) // 4
    return total


def later(latency_s: float, completion: Completion) -> asyncio.Future[Completion]:
    """A future that has the completion after so long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    if latency_s <= 0:
        future.set_result(completion)
    else:
        loop.call_later(latency_s, future.set_result, completion)
    return future


def latency_s(settings: Settings, prompt: Prompt) -> float:
    """How long this prompt takes, by the configured distribution."""
    latency = settings.latency
    seconds = draw(latency.kind, latency.mean_s, latency.spread, prompt.dice.latency)
    seconds *= prompt.latency_factor
    return min(seconds, latency.max_s) if latency.max_s else seconds


class Synthetic:
    """The backend for load."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def begin(self, prompt: Prompt) -> asyncio.Future[Completion]:
        return later(latency_s(self.settings, prompt), self.compose(prompt))

    def most_tokens(self, prompt: Prompt) -> tuple[int, int]:
        completion = self.compose(prompt)
        return completion.prompt_tokens, completion.completion_tokens

    def compose(self, prompt: Prompt) -> Completion:
        """The whole completion; the same for the same messages and max_tokens."""
        thoughts, closed, answer, ended = self._sizes(prompt)
        start = int(prompt.dice.text * len(_RING))
        content = words(start + thoughts, answer)
        finish = "stop" if ended else "length"
        return Completion(
            content=content if closed or not thoughts else None,
            reasoning=words(start, thoughts) if thoughts else None,
            prompt_tokens=prompt_tokens(prompt.messages),
            completion_tokens=thoughts + closed + answer + ended,
            reasoning_tokens=thoughts + closed,
            finish_reason=finish,
            native_finish_reason=finish,
            logprobs=_logprobs(content, prompt.top_logprobs),
        )

    def _sizes(self, prompt: Prompt) -> tuple[int, int, int, int]:
        """Words of reasoning, 1 if it is closed, words of content, 1 if the turn is ended."""
        sizes = self.settings.completion
        wanted = int(draw(sizes.kind, sizes.mean_tokens, sizes.spread, prompt.dice.size))
        if sizes.max_tokens:
            wanted = min(wanted, sizes.max_tokens)
        share = self.settings.reasoning_share if prompt.reasoning else 0.0
        thoughts = max(1, int(wanted * share)) if share else 0
        closing = 1 if thoughts else 0
        answer = max(1, wanted - thoughts - closing - 1)
        left = prompt.max_tokens
        spent = []
        for part in (thoughts, closing, answer, 1):
            spent.append(min(part, left))
            left -= spent[-1]
        return spent[0], spent[1], spent[2], spent[3]


def _logprobs(content: str, alternatives: int | None) -> dict[str, Any] | None:
    """One entry for each word of the content; the values are made up."""
    if alternatives is None:
        return None
    entries = []
    for index, word in enumerate(content.split()):
        token = f" {word}"
        entry: dict[str, Any] = {"token": token, "logprob": -0.125 * (index % 8 + 1)}
        entry["bytes"] = list(token.encode())
        top = {key: entry[key] for key in ("token", "logprob", "bytes")}
        entry["top_logprobs"] = [top] if alternatives else []
        entries.append(entry)
    return {"content": entries, "refusal": None}
