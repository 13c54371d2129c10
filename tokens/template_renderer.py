"""A renderer that any Hugging Face tokenizer with a chat template gives.

The prefix is the template's own output. A completion is spelt out, since templates trim
answers and drop reasoning: content as it came, tool calls as the template writes them, the
token that the template ends an answer with. A family whose models think overrides `written`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokens.chat_template import ChatTemplate
from tokens.conversation import Answer, Message, Prompt, arguments_of, text_of
from tokens.errors import FolderError, Unrenderable
from tokens.folder import Folder
from tokens.hf_codec import HfCodec
from tokens.pieces import Shield, Special, assemble
from tokens.renderer import Markup, Renderer

#: A conversation to see a template's habits on.
PROBE: list[Message] = [{"role": "user", "content": "Why?"}]
#: Ends with a noncharacter, so that no tool call and no template has it too.
PROBE_ANSWER = "Because.\ufdef"
THINK, THINK_END = "<think>", "</think>"
#: A thought that a generation prompt opens, or opens and closes.
THOUGHT = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
ASKS_FOR_NONE = re.compile(r"content\W+is (?:not )?none")
EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\s*")


class TemplateRenderer(Renderer):
    """Renders with the tokenizer and the chat template of a model folder."""

    def __init__(self, folder: Folder, family: str, thinking_variable: str = "") -> None:
        """`thinking_variable`: the template's name for `Prompt.thinking`; "" for no choice."""
        if folder.chat_template is None:
            raise FolderError(
                f"{folder.path} has no chat template: put chat_template.jinja there, from the "
                "model's repository"
            )
        self.family = family
        self.thinking_variable = thinking_variable
        self.codec = HfCodec(folder.tokenizer)
        self.template = ChatTemplate(folder.chat_template, _named_tokens(folder))
        self._asks_for_none = bool(ASKS_FOR_NONE.search(folder.chat_template))
        self.shield = Shield(self.codec.special)
        self.size = self.codec.size
        self.markup = _markup(self.codec.special)
        self.control_ids = folder.control_ids
        self.special_ids = frozenset(self.codec.special.values())
        self.end = Special(self._end_token(folder))
        self.end_id = self.codec.special[self.end]

    def prefix(self, prompt: Prompt) -> list[int]:
        (messages, tools), mark = self.shield.shield((prompt.messages, prompt.tools))
        text = self.text(Prompt(messages, tools, prompt.thinking, prompt.day))
        if not mark:
            return self.codec.encode_template(text)
        pieces = self.shield.pieces(text, mark)
        return assemble(pieces, self.codec.special, self.codec.encode_people)

    def completion(self, answer: Answer, thinking: bool = True) -> list[int]:
        pieces = list(self.written(answer, thinking))
        if answer.tool_calls:
            pieces += self._called(answer, thinking)
        if answer.ended:
            pieces.append(self.end)
        return assemble(pieces, self.codec.special, self.codec.encode)

    def written(self, answer: Answer, thinking: bool) -> Iterator[str]:
        """The pieces of an answer before its tool calls."""
        if answer.reasoning:
            raise Unrenderable(f"the answer has reasoning, and the family {self.family} has none")
        yield answer.content or ""

    def encode(self, text: str) -> list[int]:
        return self.codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.codec.decode(ids)

    def bytes_of(self, token_id: int) -> bytes | None:
        return self.codec.bytes_of(token_id)

    def text(self, prompt: Prompt, generate: bool = True) -> str:
        """The template over a conversation, special tokens spelt out.

        Templates differ in what they take: arguments parsed or as text, and where there is no
        content, empty text or null (those that ask). The first form that is accepted counts.
        """
        variables: dict[str, Any] = {"add_generation_prompt": generate}
        if self.thinking_variable:
            variables[self.thinking_variable] = prompt.thinking
        tools = list(prompt.tools) if prompt.tools else None
        refusals = []
        for messages in self._forms(prompt.messages):
            try:
                return self.template.render(messages, tools, prompt.day, **variables)
            except Unrenderable as error:
                refusals.append(error)
        raise refusals[0]

    def _called(self, answer: Answer, thinking: bool) -> Iterator[str]:
        """Tool calls as the template writes them behind the answer's content."""
        calls, mark = self.shield.shield(list(answer.tool_calls))
        for content in (PROBE_ANSWER, "") if answer.content else ("",):
            text = self._behind(content, calls, thinking)
            if calls[0]["function"]["name"] in text:
                return self.shield.pieces(text, mark)
        raise Unrenderable("the chat template leaves tool calls out")

    def _behind(self, content: str, calls: Sequence[Mapping[str, Any]], thinking: bool) -> str:
        """What the template writes between an answer's content and its end."""
        message = {"role": "assistant", "content": content or None, "tool_calls": calls}
        text = self.text(Prompt([*PROBE, message], thinking=thinking), generate=False)
        text = text.rpartition(self.end)[0] or text
        if content:
            return text.partition(content)[2]
        header = THOUGHT.sub("", self.text(Prompt(PROBE, thinking=thinking)))
        return EMPTY_THOUGHT.sub("", text.removeprefix(header), count=1)

    def _forms(self, messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
        for empty in (None, "") if self._asks_for_none else ("",):
            for parsed in (True, False):
                yield [_form(message, parsed, empty) for message in messages]

    def _end_token(self, folder: Folder) -> str:
        """The first special token behind an answer; else the tokenizer's `eos_token`."""
        answered = [*PROBE, {"role": "assistant", "content": PROBE_ANSWER}]
        behind = self.text(Prompt(answered), generate=False).rpartition(PROBE_ANSWER)[2]
        for piece in self.shield.pieces(behind):
            if isinstance(piece, Special):
                return piece
        eos = self.template.special.get("eos_token", "")
        if eos not in self.codec.special:
            raise FolderError(
                f"{folder.path}: neither the chat template nor eos_token in tokenizer_config.json "
                "says which token ends an answer"
            )
        return eos


def _markup(special: Mapping[str, int]) -> Markup:
    think = tuple(token for token in (THINK, THINK_END) if token in special)
    return Markup(think, tuple(token for token in special if "tool" in token))


def _named_tokens(folder: Folder) -> dict[str, str]:
    """`bos_token` and its like, as templates use them."""
    named = {}
    for name, value in folder.tokenizer_config.items():
        token = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(token, str):
            named[name] = token
    return named


def _form(message: Message, parsed: bool, empty: str | None) -> dict[str, Any]:
    content = message.get("content")
    form = {**message, "content": empty if content is None else text_of(content, "\n")}
    if message.get("reasoning") and "reasoning_content" not in message:
        form["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        form["tool_calls"] = [_call(call, parsed) for call in message["tool_calls"]]
    return form


def _call(call: Mapping[str, Any], parsed: bool) -> dict[str, Any]:
    arguments = arguments_of(call) if parsed else call["function"].get("arguments")
    return {**call, "function": {**call["function"], "arguments": arguments}}
