"""What others said, as slots in the text of a chat template.

Texts of others are numbers while a template renders a conversation, and are put in their places
afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]  # as transformers' chat templates take it
# Of a rendered skeleton: a text of the template's, the slot behind it (the last part has none), and
# whether that is within JSON.
Part = tuple[str, int | None, bool]

# A slot's number, as it is, or where the template writes JSON. No template writes NUL by itself.
_SLOT = re.compile(r"\0(\d+)\0|\\u0000(\d+)\\u0000")
NUL = re.compile(r"\0|\\u0000")  # a part of what could be taken for a slot


class Piece(NamedTuple):
    """A piece of a rendered conversation. own: whether the template says it."""

    text: str
    own: bool


def cut(text: str) -> list[Part]:
    """Returns the parts of a rendered skeleton."""
    parts: list[Part] = []
    start = 0
    for slot in _SLOT.finditer(text):
        as_json = slot[2] is not None
        parts.append((text[start : slot.start()], int(slot[1] or slot[2]), as_json))
        start = slot.end()
    return [*parts, (text[start:], None, False)]


def filled(slots: Slots, parts: Sequence[Part]) -> list[Piece]:
    """Returns the parts with the texts of their slots."""
    found = [number for _, number, _ in parts if number is not None]
    once = [number for number in found if number not in slots.names]
    if not slots.required <= set(found) or len(once) > len(set(once)):
        raise ValueError("the chat template drops or repeats message contents: cannot use it")
    pieces = []
    for own, number, as_json in parts:
        pieces.append(Piece(own, True))
        if number is not None:
            text = slots.texts[number]
            escaped = json.dumps(text, ensure_ascii=False)[1:-1] if as_json else text
            pieces.append(Piece(escaped, False))
    return pieces


class Slots:
    """Texts that others wrote, and the numbers that stand for them in a skeleton. required: those
    that the template must not leave out. names: of the tools that were called, and ids of calls,
    which it may repeat beside their results. is_suspect: whether a text has a marker or a slot."""

    def __init__(self, is_suspect: Callable[[str], bool]) -> None:
        self._is_suspect = is_suspect
        self.texts: list[str] = []
        self.required: set[int] = set()
        self.names: set[int] = set()
        self._ids: dict[str, str] = {}

    def hide_message(self, message: Message) -> dict[str, Any]:
        shown: dict[str, Any] = {"role": message["role"]}
        first = len(self.texts)
        for name in ("content", "reasoning_content"):
            if text := message.get(name):
                shown[name] = self._hide(text)
            elif name == "content":
                # A template may ask whether the policy said anything.
                shown[name] = "" if message["role"] == "assistant" else self._hide("")
        # Beside calls, some formats have no content; and thoughts are left out of earlier turns.
        if message["role"] != "assistant":
            self.required.update(range(first, len(self.texts)))
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [self.hide_call(call) for call in calls]
        if "tool_call_id" in message:
            shown["tool_call_id"] = self._hide_id(message["tool_call_id"])
        return shown

    def hide_suspect(self, value: Any) -> Any:
        """JSON, in which the strings that have markers or slots are hidden. Templates may measure,
        cut and compare all others."""
        return self._hide_where(value, self._is_suspect)

    def hide_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """arguments: an object."""
        function = call["function"]
        self.names.add(len(self.texts))
        shown = {
            "name": self._hide(function["name"]),
            "arguments": self._hide_where(function["arguments"], lambda text: True),
        }
        call_id = self._hide_id(call.get("id", ""))
        return {"type": "function", "function": shown, "id": call_id}

    def _hide_id(self, id: str) -> str:
        """A call and its result have the same slot, as templates compare their ids."""
        if id not in self._ids:
            first = len(self.texts)
            self._ids[id] = self.hide_suspect(id)
            self.names.update(range(first, len(self.texts)))
        return self._ids[id]

    def _hide(self, text: str) -> str:
        """White space around a text is left as it is, as many templates trim it."""
        within = text.strip()
        before, _, after = text.partition(within) if within else (text, "", "")
        self.texts.append(within)
        return f"{before}\0{len(self.texts) - 1}\0{after}"

    def _hide_where(self, value: Any, is_hidden: Callable[[str], bool]) -> Any:
        match value:
            case str():
                return self._hide(value) if is_hidden(value) else value
            case Mapping():
                inner = value.items()
                return {
                    self._hide_where(k, is_hidden): self._hide_where(v, is_hidden) for k, v in inner
                }
            case list() | tuple():
                return [self._hide_where(each, is_hidden) for each in value]
        return value
