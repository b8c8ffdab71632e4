"""How the policy's model writes: from ids to what a reply says, also while it is being written."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ale_jax.gateway.formats.grammar import json_grammar
from ale_jax.gateway.formats.reply import (
    ParsedReply,
    Preview,
    ReplyFormat,
    sendable,
    split_marked,
    without_marks,
)
from ale_jax.gateway.requests import AUTO, NONE, REQUIRED, ApiError, ChatRequest, Prompt

EFFORT = "reasoning_effort"  # as templates call it
UNDECODED = "\ufffd"  # at the end: a letter of which some bytes are still to come


@dataclasses.dataclass(frozen=True)
class Language:
    """The words and forms of a model: its tokens, its template, its format of calls. marked_text:
    of ids, without those that end a reply, and with marked special tokens. tokens: as in
    `formats.grammar`. prompt_ids: of a text, in which special tokens may be named, or of ids that a
    client gives (by default, of ids only); ValueError if there are none, or no such tokens.
    token_bytes: of a token that may be a part of a character; None if only its text is known.
    variables: the names of those that the template reads. opens_thoughts: whether the prompt, with
    these variables, ends within the thoughts of the reply.
    """

    format: ReplyFormat
    marked_text: Callable[[np.ndarray], str]
    tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    prompt_ids: Callable[[Prompt], np.ndarray] = np.asarray
    token_bytes: Callable[[int], bytes | None] = lambda id: None
    variables: Collection[str] = ()
    opens_thoughts: Callable[[Mapping[str, Any]], bool] = lambda variables: False

    def variables_of(self, request: ChatRequest) -> dict[str, Any]:
        """Returns the variables of the template that a request sets. An effort of reasoning is one
        where the template reads it. ApiError (400) for one that it does not read."""
        if unknown := sorted(request.variables.keys() - set(self.variables)):
            known = ", ".join(sorted(self.variables)) or "no variables"
            text = f"the chat template has no variable {unknown[0]!r:.80}, but {known}"
            raise ApiError(400, text, "chat_template_kwargs")
        has_effort = request.effort and EFFORT in self.variables
        return ({EFFORT: request.effort} if has_effort else {}) | dict(request.variables)

    def grammar(self, request: ChatRequest) -> str | None:
        """Returns the grammar that the request holds a reply to; None if to nothing. ApiError (400)
        if this format cannot be held to it."""
        try:
            if request.tool_choice not in (AUTO, NONE):
                return self._call_grammar(request)
            return json_grammar(request.schema) if request.schema is not None else None
        except ValueError as error:
            raise ApiError(400, f"not a schema that a reply can be held to: {error}") from error

    def _call_grammar(self, request: ChatRequest) -> str:
        """ValueError as from `formats.grammar.json_rule`."""
        tools = _parameters(request)
        if request.allowed is not None:
            tools = {name: tools[name] for name in request.allowed}
        if request.tool_choice != REQUIRED:
            tools = {request.tool_choice: tools[request.tool_choice]}
        several = request.parallel_calls and request.tool_choice == REQUIRED
        grammar = self.format.call_grammar(tools, self.tokens, several) if tools else None
        if grammar is None:
            text = "the policy cannot be made to call a tool" if tools else "there are no tools"
            raise ApiError(400, text, "tool_choice")
        return grammar

    def read(self, ids: np.ndarray, request: ChatRequest) -> ParsedReply:
        """Reads a whole reply. It ends before the first of the texts that were asked to stop it."""
        text = self.marked_text(ids)
        stop = _first_stop(text, request.options.stop)
        said = self._read(text.partition(stop)[0] if stop else text, request)
        return dataclasses.replace(said, stop=stop)

    def _read(self, text: str, request: ChatRequest) -> ParsedReply:
        if request.prompts:
            return ParsedReply(without_marks(text))
        if _is_as_written(request):
            return ParsedReply(without_marks(text).strip())
        text = self._opened(text, request)
        said = self.format.parse(text, _parameters(request))
        if not all(_may_be_called(call.name, request) for call in said.calls):
            thoughts, rest = split_marked(text, self.format.thoughts)
            return ParsedReply(rest.strip(), thoughts)
        if request.parallel_calls:
            return said
        return dataclasses.replace(said, calls=said.calls[:1])

    def _opened(self, text: str, request: ChatRequest) -> str:
        """A reply with what the prompt has opened: its thoughts."""
        tags = self.format.thoughts
        return tags[0] + text if tags and self.opens_thoughts(self.variables_of(request)) else text

    def token_text(self, id: int) -> str:
        """Returns what a token stands for, if it stands alone."""
        return without_marks(self.marked_text(np.array([id])))

    def end_of(self, ids: np.ndarray, stops: Sequence[str]) -> int | None:
        """Returns after how many of the ids one of the texts is complete; None if none is."""

        def is_met(length: int) -> bool:
            return bool(_first_stop(self.marked_text(ids[:length]), stops))

        # Bisected, as the engine waits meanwhile: a text that is there stays there.
        return bisect_left(range(len(ids)), True, key=is_met) if is_met(len(ids)) else None

    def preview(self, ids: np.ndarray, request: ChatRequest) -> Preview:
        """Returns what is sure of an unfinished reply. `ids` may go on behind its end."""
        text = self.marked_text(ids)
        said = self._preview(text[: sendable(text, request.options.stop)], request)
        return Preview(_decoded(said.thoughts), _decoded(said.content))

    def _preview(self, text: str, request: ChatRequest) -> Preview:
        if request.prompts:
            return Preview(content=without_marks(text))
        if _is_as_written(request):
            return Preview(content=without_marks(text).strip())
        said = self.format.preview(self._opened(text, request))
        may_call_all = request.tool_choice != NONE and request.allowed is None
        # If a call turns out to be text, so do thoughts that are in no tags, as `_read` has it.
        is_sure = may_call_all or self.format.thoughts is not None
        return said if is_sure else Preview(content=said.content)


def _decoded(text: str) -> str:
    """Without the letter at the end that is not complete, and what stands before it alone."""
    return text.rstrip(UNDECODED).rstrip() if text.endswith(UNDECODED) else text


def _may_be_called(name: str, request: ChatRequest) -> bool:
    """Whether a call of this name is one. What is excluded is text."""
    return request.tool_choice != NONE and (request.allowed is None or name in request.allowed)


def _parameters(request: ChatRequest) -> dict[str, Any]:
    """Of each tool, its parameters' schema."""
    functions = [tool["function"] for tool in request.tools]
    return {each["name"]: each["parameters"] for each in functions}


def _is_as_written(request: ChatRequest) -> bool:
    """Whether the client reads thoughts and calls from the text itself, as our own loop does."""
    return request.tool_choice == NONE and not request.tools


def _first_stop(text: str, stops: Sequence[str]) -> str:
    """The one that is met first; "" if none is."""
    found = [stop for stop in stops if stop in text]
    return min(found, key=text.index, default="")
