"""Messages as a chat template writes them, in pieces: what the template says, and what others said.

Together the pieces are the template's text, and they are encoded as a whole. Markers of the second
kind become ordinary text, so that an agent, a sandbox or a client can neither end a turn nor open
one, and neither a call nor its result (`piece_encoder`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ale_jax.model.slots import NUL, Message, Part, Piece, Slots, cut, filled
from ale_jax.model.system_messages import folded
from ale_jax.model.template_dialect import ASKED, Apply, Dialect, dialect_of
from ale_jax.model.told_tools import with_calls_told, with_tools_told

MAX_SKELETONS = 1024
MAX_KEPT_CHARS = 1 << 17  # of one text; thousands of longer ones would fill the memory
# Tokens that end a turn with a call, beside the one that ends all others.
CALL_ENDS = ("<|call|>", "<|eom_id|>")
# Thoughts without a word, which a template may write only before the policy's next turn.
EMPTY_THOUGHTS = re.compile(r"\s*(<think>\s*</think>|<\|channel>thought\s*<channel\|>)\s*")
# The end of a reply, as it is, or where the template writes JSON.
_REPLY = "\0reply\0"
_REPLIED = re.compile(r"\0reply\0|\\u0000reply\\u0000")


class Ends(NamedTuple):
    """The special tokens behind replies. turn: behind one without calls. call: behind one with
    calls. others: that end turns in their places. closes: whether they are the policy's own, and
    not those that open the next turn, in templates that write no end of a turn."""

    turn: str
    call: str
    others: tuple[str, ...]
    closes: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.turn, self.call, *self.others)


class ChatRenderer:
    """Renders conversations by a chat template, in pieces.

    ends: the special tokens behind a reply. opening: what the template writes before a reply,
    behind its last special token. prompt: that of a short conversation. dialect: how the template
    takes messages.
    """

    def __init__(
        self,
        apply_template: Apply,
        special: Collection[str],
        names_marker: Callable[[str], bool],
    ):
        """apply_template: from messages, tools (or None), and whether the policy's next turn is to
        be opened, to text. special: the names of all special tokens. names_marker: whether a text
        has the name of a marker.

        ValueError if the template writes no special token between the policy's turns and others.
        """
        self._apply, self._names_marker = apply_template, names_marker
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len)[::-1])))
        self._parts_of = lru_cache(MAX_SKELETONS)(self._parts)
        self._reply_parts_of = lru_cache(MAX_SKELETONS)(self._reply_parts)
        self.dialect: Dialect = dialect_of(apply_template)
        self.ends = self._ends(special)
        self.prompt = self._render([ASKED], None)
        self.opening = self._opening()

    def first(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Piece]:
        """Returns the pieces of a conversation that begins with `messages`, up to the policy's next
        token.

        ValueError if the template refuses them, or drops what somebody said.
        """
        if not self.dialect.has_calls:
            messages = with_calls_told(messages, self.dialect.has_results)
        if tools and not self.dialect.has_tools:
            messages, tools = with_tools_told(messages, tools, self._example), None
        return self._pieces(messages, tools, first=True)

    def following(self, messages: Sequence[Message], calls: Sequence[Message] = ()) -> list[Piece]:
        """Returns the pieces of messages that follow a reply of the policy. The first begins with
        the token that ends its turn. calls: of the reply, which templates look back to."""
        if not self.dialect.has_calls:
            messages, calls = with_calls_told(messages, self.dialect.has_results), ()
        return self._pieces(messages, None, first=False, calls=calls)

    def reply(self, message: Message) -> list[Piece]:
        """Returns the pieces of a message of the policy, between the opening of its turn and the
        token that ends it.

        ValueError if the template refuses it, or drops a part of it.
        """
        slots = self._slots()
        if not self.dialect.has_calls:
            (message,) = with_calls_told([message], has_results=True)
        skeleton = json.dumps(slots.hide_message(message))
        slots.required.update(range(len(slots.texts)))  # here, also its thoughts and content
        if not self.dialect.has_names:
            slots.required -= slots.names  # which are a part of the calls' ids
        return filled(slots, _of_skeleton(self._reply_parts_of, skeleton))

    @cached_property
    def _example(self) -> str:
        """A call as the template writes it; "" if it writes none."""
        if not self.dialect.has_calls:
            return ""
        pieces = self.reply({"role": "assistant", "content": "", "tool_calls": [_EXAMPLE]})
        return "".join(piece.text for piece in pieces)

    def names_special(self, text: str) -> bool:
        """Returns whether a text has the name of a special token."""
        return bool(self._special.search(text))

    def _pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        first: bool,
        calls: Sequence[Message] = (),
    ) -> list[Piece]:
        """System messages are where they were said, or, if the template refuses that, a part of
        their neighbours."""
        try:
            return self._pieces_as_told(messages, tools, first, calls)
        except ValueError:
            if (inside := folded(messages, first)) == list(messages):
                raise
            return self._pieces_as_told(inside, tools, first, calls)

    def _pieces_as_told(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        first: bool,
        calls: Sequence[Message],
    ) -> list[Piece]:
        slots = self._slots()
        shown = [slots.hide_message(message) for message in messages]
        offered = tools and slots.hide_suspect(list(tools))
        answered = calls if messages[0]["role"] == "tool" else ()
        skeleton = json.dumps([shown, offered, list(map(slots.hide_call, answered))])
        return filled(slots, _of_skeleton(self._parts_of, skeleton, first))

    def _slots(self) -> Slots:
        return Slots(lambda text: self._names_marker(text) or bool(NUL.search(text)))

    def _parts(self, skeleton: str, first: bool) -> list[Part]:
        """skeleton: messages, tools and the reply's calls with slots, as JSON."""
        messages, tools, calls = json.loads(skeleton)
        if first:
            return cut(self._render(messages, tools))
        text = self._after_reply(messages, calls, prompt=True)
        begins = self._special.match(text)
        has_end = begins and (begins[0] in self.ends.names or not self.ends.closes)
        return cut(text if has_end else self.ends.turn + text)

    def _reply_parts(self, skeleton: str) -> list[Part]:
        """skeleton: a message of the policy with slots, as JSON."""
        message = json.loads(skeleton)
        opened = self.prompt
        whole = self._render([ASKED, message], None, prompt=False)
        begun = _common_beginning(whole, opened)
        # The prompt may have more than the turn, which a reply can only go on from.
        if begun != opened and not EMPTY_THOUGHTS.fullmatch(opened[len(begun) :]):
            raise ValueError("the chat template writes this reply in another form than its prompt")
        text = whole[len(begun) :]
        if not self.ends.closes:
            return cut(text)
        end = max(text.rfind(name) for name in self.ends.names)
        return cut(text[:end] if end >= 0 else text)  # DeepSeek V3 writes no end of a single call

    def _after_reply(
        self, messages: Sequence[Message], calls: Sequence[Message] = (), prompt: bool = False
    ) -> str:
        """What the template writes after a reply, the end of its turn included."""
        if calls and self.dialect.has_calls:
            alone = self._behind(calls, (), prompt=False)
            end = max((alone.rfind(name) for name in self.ends.names), default=-1)
            closing = alone[:end] if self.ends.closes and end >= 0 else alone
            text = self._behind(calls, messages, prompt)
            if text.startswith(closing):
                return text[len(closing) :]
        return self._behind((), messages, prompt)

    def _behind(self, calls: Sequence[Message], messages: Sequence[Message], prompt: bool) -> str:
        """What the template writes behind the last letter of a reply: of its content, or of the
        arguments of its last call."""
        reply: dict[str, Any] = {"role": "assistant", "content": "" if calls else _REPLY}
        if calls:
            told = [_with_arguments(call, {}) for call in calls]
            reply["tool_calls"] = [*told[:-1], _with_arguments(calls[-1], {"reply": _REPLY})]
        text = self._render([ASKED, reply, *messages], None, prompt)
        found = _REPLIED.search(text)
        return text[found.end() :] if found else ""

    def _ends(self, special: Collection[str]) -> Ends:
        alone, before_user = self._behind((), (), False), self._behind((), [ASKED], True)
        own, next_one = self._special.match(alone), self._special.match(before_user)
        if own and own[0]:
            others = {next_one[0] if next_one else "", *CALL_ENDS} & set(special)
            call = self._end_of_call() or own[0]
            return Ends(own[0], call if call in others else own[0], tuple(others), True)
        if not next_one or not next_one[0]:
            raise ValueError(
                f"the chat template ends a turn by {alone[:40]!r}, which is no special token: only "
                "formats that end turns with one, or begin the next one with one, are supported"
            )
        return Ends(next_one[0], self._opening_of_result() or next_one[0], (), False)

    def _end_of_call(self) -> str:
        """The last special token behind a reply with a call; "" if there is none."""
        found = self._special.findall(self._behind_call(()))
        return found[-1] if found else ""

    def _opening_of_result(self) -> str:
        """The special token that begins the result of a call; "" if there is none."""
        alone, whole = self._behind_call(()), self._behind_call([_RESULT])
        found = self._special.match(whole.removeprefix(alone))
        return found[0] if found else ""

    def _behind_call(self, messages: Sequence[Message]) -> str:
        if not self.dialect.has_calls:
            return ""
        try:
            return self._behind([_CALL], messages, prompt=False)
        except ValueError:  # of templates that have no place for results
            return ""

    def _opening(self) -> str:
        *_, (text, *_) = self._parts(json.dumps([[ASKED], None, []]), False)
        return self._special.split(text)[-1]

    def _render(self, messages: Sequence[Message], tools: Any, prompt: bool = True) -> str:
        try:
            return self._apply(self.dialect.told(messages), tools, prompt)
        except Exception as error:  # a template may raise its own, and any of jinja's
            raise ValueError(f"the chat template refuses these messages: {error!s:.300}") from error


_CALL: Message = {
    "type": "function",
    "id": "000000000",
    "function": {"name": "do", "arguments": {}},
}
_EXAMPLE = {**_CALL, "function": {"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}}
_RESULT: Message = {"role": "tool", "content": "-", "tool_call_id": "000000000"}


def _common_beginning(a: str, b: str) -> str:
    differing = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return a[: next(differing, min(len(a), len(b)))]


def _with_arguments(call: Message, arguments: Message) -> Message:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _of_skeleton(parts_of: Any, skeleton: str, *more: bool) -> list[Part]:
    """parts_of: remembers its results, but those of very long skeletons are not kept."""
    return (parts_of if len(skeleton) <= MAX_KEPT_CHARS else parts_of.__wrapped__)(skeleton, *more)
