"""Messages as a chat template writes them, in pieces: what the template says, and what others said.

Together the pieces are the template's text, and they are encoded as a whole. Markers of the second
kind become ordinary text, so that an agent, a sandbox or a client can neither end a turn nor open
one, and neither a call nor its result (`piece_encoder`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ale_jax.model.system_messages import folded

Message = Mapping[str, Any]  # as transformers' chat templates take it
# Of a rendered skeleton: a text of the template's, the slot behind it (the last part has none), and
# whether that is within JSON.
Part = tuple[str, int | None, bool]

MAX_SKELETONS = 1024
MAX_KEPT_CHARS = 1 << 17  # of one text; thousands of longer ones would fill the memory
# A slot's number, as it is, or where the template writes JSON. No template writes NUL by itself.
_SLOT = re.compile(r"\0(\d+)\0|\\u0000(\d+)\\u0000")
_NUL = re.compile(r"\0|\\u0000")  # a part of what could be taken for a slot


class Piece(NamedTuple):
    """A piece of a rendered conversation. own: whether the template says it."""

    text: str
    own: bool


class ChatRenderer:
    """Renders conversations by a chat template, in pieces.

    end_of_turn: the special token behind a reply. opening: what the template writes before a reply,
    behind its last special token.
    """

    def __init__(
        self,
        apply_template: Callable[[list[Message], Any, bool], str],
        special: Collection[str],
        names_marker: Callable[[str], bool],
    ):
        """apply_template: from messages, tools (or None), and whether the policy's next turn is to
        be opened, to text. special: the names of all special tokens. names_marker: whether a text
        has the name of a marker.

        ValueError if the template does not end the policy's turns with a special token.
        """
        self._apply, self._names_marker = apply_template, names_marker
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len)[::-1])))
        self._parts_of = lru_cache(MAX_SKELETONS)(self._parts)
        self._reply_parts_of = lru_cache(MAX_SKELETONS)(self._reply_parts)
        self.end_of_turn = self._end_of_turn()
        self.opening = self._opening()

    def first(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Piece]:
        """Returns the pieces of a conversation that begins with `messages`, up to the policy's next
        token.

        ValueError if the template refuses them, or drops what somebody said.
        """
        return self._pieces(messages, tools, first=True)

    def following(self, messages: Sequence[Message]) -> list[Piece]:
        """Returns the pieces of messages that follow a reply of the policy. The first begins with
        the token that ends its turn."""
        return self._pieces(messages, None, first=False)

    def reply(self, message: Message) -> list[Piece]:
        """Returns the pieces of a message of the policy, between the opening of its turn and the
        token that ends it.

        ValueError if the template refuses it, or drops a part of it.
        """
        slots = self._slots()
        skeleton = json.dumps(slots.hide_message(message))
        slots.required.update(range(len(slots.texts)))  # here, also its thoughts and content
        return _filled(slots, _of_skeleton(self._reply_parts_of, skeleton))

    def names_special(self, text: str) -> bool:
        """Returns whether a text has the name of a special token."""
        return bool(self._special.search(text))

    def _pieces(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, first: bool
    ) -> list[Piece]:
        """System messages are where they were said, or, if the template refuses that, a part of
        their neighbours."""
        try:
            return self._pieces_as_told(messages, tools, first)
        except ValueError:
            if (inside := folded(messages, first)) == list(messages):
                raise
            return self._pieces_as_told(inside, tools, first)

    def _pieces_as_told(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, first: bool
    ) -> list[Piece]:
        slots = self._slots()
        shown = [slots.hide_message(message) for message in messages]
        offered = tools and slots.hide_suspect(list(tools))
        skeleton = json.dumps([shown, offered])
        return _filled(slots, _of_skeleton(self._parts_of, skeleton, first))

    def _slots(self) -> _Slots:
        return _Slots(lambda text: self._names_marker(text) or bool(_NUL.search(text)))

    def _parts(self, skeleton: str, first: bool) -> list[Part]:
        """skeleton: messages and tools with slots, as JSON."""
        messages, tools = json.loads(skeleton)
        if first:
            text = self._render(messages, tools)
        else:
            text = self._after_reply(messages, add_generation_prompt=True)
            text = self.end_of_turn + text.removeprefix(self.end_of_turn)
        return _cut(text)

    def _reply_parts(self, skeleton: str) -> list[Part]:
        """skeleton: a message of the policy with slots, as JSON."""
        asked: list[Message] = [{"role": "user", "content": "-"}]
        opened = self._render(asked, None)
        whole = self._render([*asked, json.loads(skeleton)], None, prompt=False)
        text, end, _ = whole.removeprefix(opened).rpartition(self.end_of_turn)
        if not whole.startswith(opened) or not end:
            raise ValueError("the chat template writes this reply in another form than its prompt")
        return _cut(text)

    def _after_reply(self, messages: list[Message], add_generation_prompt: bool) -> str:
        """What the template writes after a reply, the end of its turn included."""
        reply = "\0reply\0"
        before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": reply}]
        text = self._render([*before, *messages], None, add_generation_prompt)
        return text.partition(reply)[2]

    def _end_of_turn(self) -> str:
        text = self._after_reply([], add_generation_prompt=False)
        found = self._special.match(text)
        if not found or not found[0]:
            raise ValueError(
                f"the chat template ends a turn by {text[:40]!r}, which is no special token: only "
                "formats that end turns with one are supported"
            )
        return found[0]

    def _opening(self) -> str:
        *_, (text, *_) = self._parts(json.dumps([[{"role": "user", "content": "-"}], None]), False)
        return self._special.split(text)[-1]

    def _render(self, messages: list[Message], tools: Any, prompt: bool = True) -> str:
        try:
            return self._apply(messages, tools, prompt)
        except Exception as error:  # a template may raise its own, and any of jinja's
            raise ValueError(f"the chat template refuses these messages: {error!s:.300}") from error


def _of_skeleton(parts_of: Any, skeleton: str, *more: bool) -> list[Part]:
    """parts_of: remembers its results, but those of very long skeletons are not kept."""
    return (parts_of if len(skeleton) <= MAX_KEPT_CHARS else parts_of.__wrapped__)(skeleton, *more)


def _cut(text: str) -> list[Part]:
    """Returns the parts of a rendered skeleton."""
    parts: list[Part] = []
    start = 0
    for slot in _SLOT.finditer(text):
        as_json = slot[2] is not None
        parts.append((text[start : slot.start()], int(slot[1] or slot[2]), as_json))
        start = slot.end()
    return [*parts, (text[start:], None, False)]


def _filled(slots: _Slots, parts: Sequence[Part]) -> list[Piece]:
    """Returns the parts with the texts of their slots."""
    found = [number for _, number, _ in parts if number is not None]
    if not slots.required <= set(found) or len(found) > len(set(found)):
        raise ValueError("the chat template drops or repeats message contents: cannot use it")
    pieces = []
    for own, number, as_json in parts:
        pieces.append(Piece(own, True))
        if number is not None:
            text = slots.texts[number]
            escaped = json.dumps(text, ensure_ascii=False)[1:-1] if as_json else text
            pieces.append(Piece(escaped, False))
    return pieces


class _Slots:
    """Texts that others wrote, and the numbers that stand for them in a skeleton. required: those
    that the template must not leave out. is_suspect: whether a text has a marker or a slot."""

    def __init__(self, is_suspect: Callable[[str], bool]) -> None:
        self._is_suspect = is_suspect
        self.texts: list[str] = []
        self.required: set[int] = set()

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
            shown["tool_calls"] = [self._hide_call(call) for call in calls]
        if "tool_call_id" in message:
            shown["tool_call_id"] = self.hide_suspect(message["tool_call_id"])
        return shown

    def hide_suspect(self, value: Any) -> Any:
        """JSON, in which the strings that have markers or slots are hidden. Templates may measure,
        cut and compare all others."""
        return self._hide_where(value, self._is_suspect)

    def _hide_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """arguments: an object."""
        function = call["function"]
        shown = {
            "name": self._hide(function["name"]),
            "arguments": self._hide_where(function["arguments"], lambda text: True),
        }
        call_id = self.hide_suspect(call.get("id", ""))
        return {"type": "function", "function": shown, "id": call_id}

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
