"""Kimi-K2.5: tiktoken data, tools declared in TypeScript, thinking within special tokens.

The template has no line breaks between messages, no BOS and no default system prompt. Of past
answers only those of an open tool loop keep their reasoning: see `_last_answer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from tokens.conversation import Answer, Message, Prompt, arguments_of, text_of
from tokens.errors import FolderError, Unrenderable
from tokens.family import Family
from tokens.folder import Folder
from tokens.pieces import Special, assemble
from tokens.renderer import Markup, Renderer
from tokens.tiktoken_codec import TiktokenCodec
from tokens.typescript import declare

DATA = "tiktoken.model"
#: How text is split into words before bytes are merged.
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
#: The chat template's tokens.
USER, ASSISTANT, SYSTEM = "<|im_user|>", "<|im_assistant|>", "<|im_system|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
THINK, THINK_END = "<think>", "</think>"
CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
NEEDED = (USER, ASSISTANT, SYSTEM, MIDDLE, END, THINK, THINK_END)
CALL_TOKENS = (CALLS, CALLS_END, CALL, ARGUMENTS, CALL_END)
WRITTEN_ID = re.compile(r"[\w.-]+:\d+")
#: How every tool token begins, the ones that a model misspells too.
CALL_MARKUP = "<|tool_call"
#: Ids from 163584 on are special, named or not.
RESERVED = 256
#: Texts up to here, role names above all, are encoded once.
SHORT = 16


class KimiRenderer(Renderer):
    """Renders Kimi-K2.5 conversations."""

    family = "kimi"
    markup = Markup(think=(THINK, THINK_END), tools=(CALL_MARKUP,))

    def __init__(self, codec: TiktokenCodec, control_ids: frozenset[int]) -> None:
        self.codec = codec
        self.control_ids = control_ids
        self.special_ids = frozenset(codec.special.values())
        self.end_id = codec.special[END]
        self.size = codec.size
        self._short = lru_cache(1024)(codec.encode)

    def prefix(self, prompt: Prompt) -> list[int]:
        opening = (THINK,) if prompt.thinking else (THINK, THINK_END)
        start = (Special(ASSISTANT), "assistant", Special(MIDDLE), *map(Special, opening))
        return self._ids(chain(conversation(prompt), start))

    def completion(self, answer: Answer, thinking: bool = True) -> list[int]:
        pieces: list[str] = []
        if thinking:
            pieces.append(answer.reasoning or "")
            if answer.ended or answer.content or answer.tool_calls:
                pieces.append(Special(THINK_END))
        elif answer.reasoning:
            raise Unrenderable("the answer has reasoning though thinking was off")
        pieces.append(answer.content or "")
        pieces += _called(answer.tool_calls, written=True)
        if answer.ended:
            pieces.append(Special(END))
        return self._ids(pieces)

    def encode(self, text: str) -> list[int]:
        return self.codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.codec.decode(ids)

    def bytes_of(self, token_id: int) -> bytes | None:
        return self.codec.bytes_of(token_id)

    def _ids(self, pieces: Iterable[str]) -> list[int]:
        return assemble(pieces, self.codec.special, self._encode)

    def _encode(self, text: str) -> list[int]:
        return self._short(text) if len(text) < SHORT else self.codec.encode(text)


def conversation(prompt: Prompt) -> Iterator[str]:
    """The template over a whole conversation, without a generation prompt."""
    if prompt.tools:
        yield from (Special(SYSTEM), "tool_declare", Special(MIDDLE), declare(prompt.tools))
        yield Special(END)
    last = _last_answer(prompt.messages)
    for at, message in enumerate(prompt.messages):
        role = message["role"]
        yield Special({"user": USER, "assistant": ASSISTANT}.get(role, SYSTEM))
        yield from (message.get("name") or role, Special(MIDDLE))
        yield from _body(message, keep_reasoning=prompt.thinking and at > last)
        yield Special(END)


def _last_answer(messages: Sequence[Message]) -> int:
    """Where the last answer without tool calls stands: reasoning up to there is dropped."""
    plain = (
        at
        for at in range(len(messages) - 1, -1, -1)
        if messages[at]["role"] == "assistant" and not messages[at].get("tool_calls")
    )
    return next(plain, -1)


def _body(message: Message, keep_reasoning: bool) -> Iterator[str]:
    if message["role"] == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        yield from (Special(THINK), reasoning if keep_reasoning else "", Special(THINK_END))
        yield text_of(message.get("content"))
        yield from _called(message.get("tool_calls") or (), written=False)
        return
    if message["role"] == "tool":
        yield f"## Return of {message.get('tool_call_id') or ''}\n"
    yield text_of(message.get("content"))


def _called(calls: Sequence[Mapping[str, Any]], written: bool) -> Iterator[str]:
    """A tool-call section, as the model has just written it or as a server renders past calls."""
    if not calls:
        return
    yield Special(CALLS)
    for at, call in enumerate(calls):
        name = _written_id(call, at) if written else str(call.get("id") or "")
        arguments = call["function"].get("arguments") if written else arguments_of(call)
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        yield from (Special(CALL), name, Special(ARGUMENTS), arguments, Special(CALL_END))
    yield Special(CALLS_END)


def _written_id(call: Mapping[str, Any], at: int) -> str:
    """The id that the model wrote; some servers answer with one of their own."""
    given = call.get("id")
    if isinstance(given, str) and WRITTEN_ID.fullmatch(given):
        return given
    return f"functions.{call['function']['name']}:{at}"


def _recognises(folder: Folder) -> bool:
    if folder.model_type:
        return folder.model_type == "kimi_k25"
    return folder.has(DATA) and MIDDLE in folder.added_tokens


def _load(folder: Folder) -> KimiRenderer:
    if not folder.has(DATA):
        raise FolderError(f"{folder.path} has no {DATA}: copy it there from the model's repository")
    missing = [token for token in (*NEEDED, *CALL_TOKENS) if token not in folder.added_tokens]
    if missing:
        raise FolderError(
            f"{folder.path}: tokenizer_config.json names no {', '.join(missing)}: "
            "this is another chat format than Kimi-K2.5's"
        )
    codec = TiktokenCodec(folder.path / DATA, PATTERN, _special(folder))
    return KimiRenderer(codec, folder.control_ids)


def _special(folder: Folder) -> dict[str, int]:
    """The reserved ids, by their names; those without one by their number."""
    named = {number: name for name, number in folder.added_tokens.items()}
    first = min(named)
    ids = range(first, first + RESERVED)
    return {named.get(number, f"<|reserved_token_{number}|>"): number for number in ids}


FAMILY = Family(_recognises, _load)
