"""What a chat template expects of messages, found by what it writes.

Templates take the same messages in different forms: arguments of calls as an object or as text,
thoughts under one name or another, no content beside calls as an empty text or as none.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ale_jax.model.template_limit import TemplateTimeout

Message = Mapping[str, Any]  # as transformers' chat templates take it
Apply = Callable[[list[Message], Any, bool], str]

PROBE = "probe"  # what is looked for in what a template writes
PYTHONS = "{'a': "  # an object that a template writes as Python does, so that it wants a text
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names for them
_NAMED = re.compile(r"functions\..+:\d+", re.DOTALL)  # an id that has the name of what is called
ASKED: Message = {"role": "user", "content": "-"}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a template takes messages. thoughts: the name of a message's thoughts. as_text: whether
    arguments are JSON as text. empty: the content of a message that only has calls. has_calls,
    has_tools: whether it writes calls, and the tools that a conversation offers. has_names: whether
    it writes the names of what is called, and not just the calls' ids, which then have them.
    has_results: whether it writes messages of tools, which matters where it writes no calls."""

    thoughts: str = THOUGHTS[0]
    as_text: bool = False
    empty: str | None = ""
    has_calls: bool = True
    has_tools: bool = True
    has_names: bool = True
    has_results: bool = True

    def told(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages as the template takes them."""
        told = list(map(self._told, messages))
        return told if self.has_names else _with_named_ids(told)

    def _told(self, message: Message) -> Message:
        told = dict(message)
        if THOUGHTS[0] in told:
            told[self.thoughts] = told.pop(THOUGHTS[0])
        if calls := told.get("tool_calls"):
            told["tool_calls"] = list(map(self._call, calls)) if self.as_text else calls
            told["content"] = told["content"] or self.empty
        return told

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}


def dialect_of(apply: Apply) -> Dialect:
    """Returns the dialect of a template. apply: from messages, tools and whether the policy's next
    turn is to be opened, to text. Whatever it raises, the template refuses the messages; but for
    TemplateTimeout, which is raised here, too."""
    thoughts = next((name for name in THOUGHTS if _writes(apply, _thinking(name))), THOUGHTS[0])
    found = Dialect(thoughts, has_tools=_writes(apply, [ASKED], [_tool()]))
    for as_text, empty in itertools.product((False, True), ("", None)):
        tried = dataclasses.replace(found, as_text=as_text, empty=empty)
        if _writes(apply, tried.told([ASKED, _calling("do", PROBE)])):
            has_names = _writes(apply, tried.told([ASKED, _calling(PROBE, "-")]))
            return dataclasses.replace(tried, has_names=has_names)
    has_results = _writes(apply, [ASKED, {"role": "assistant", "content": "-"}, _RESULT])
    return dataclasses.replace(found, has_calls=False, has_results=has_results)


def _with_named_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with ids of calls as Kimi K2 has them: the name, and the number of the call in
    the conversation."""
    names: dict[str, str] = {}
    told: list[Message] = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            id, number = call["id"], int(call["id"]) if call["id"].isdecimal() else len(names)
            named = id if _NAMED.fullmatch(id) else f"functions.{call['function']['name']}:{number}"
            names[id] = named
            calls.append({**call, "id": named})
        changed: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if "tool_call_id" in message:
            changed["tool_call_id"] = names.get(message["tool_call_id"], message["tool_call_id"])
        told.append({**message, **changed})
    return told


def _writes(apply: Apply, messages: Sequence[Message], tools: Any = None) -> bool:
    try:
        text = apply(list(messages), tools, False)
    except TemplateTimeout:
        raise
    except Exception:  # a template may raise its own, and any of jinja's
        return False
    return PROBE in text and PYTHONS not in text


def _thinking(name: str) -> list[Message]:
    return [ASKED, {"role": "assistant", "content": "-", name: PROBE}]


def _calling(name: str, argument: str) -> Message:
    function = {"name": name, "arguments": {"a": argument}}
    call = {"type": "function", "function": function, "id": "000000000"}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


_RESULT: Message = {"role": "tool", "content": PROBE, "tool_call_id": "000000000"}


def _tool() -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "-"}}}
    function = {"name": PROBE, "description": "-", "parameters": {**parameters, "required": ["a"]}}
    return {"type": "function", "function": function}
