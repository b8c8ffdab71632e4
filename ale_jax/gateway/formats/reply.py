"""What a reply of the policy says: thoughts, content and tool calls, read from its own tokens.

Parsers are given the text of a reply in which each special token is marked, so that the policy
cannot be made to write one in letters. What the policy wrote is hostile: a call that cannot be read
stays in the content as it is, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ale_jax import strict_json
from ale_jax.gateway.json_values import without_flaw
from ale_jax.gateway.messages import ToolCall
from ale_jax.tagged_text import THOUGHTS, Tags, read_tagged, split_thoughts

# Around the name of a special token. Unicode reserves both for use within a program: they are not
# in any text (`plain_text` sees to it).
MARK, UNMARK = "\ufdd0", "\ufdd1"

Tools = Mapping[str, Mapping[str, Any]]  # JSON schema of the parameters, by the tool's name


@dataclasses.dataclass(frozen=True)
class ParsedReply:
    """What a reply says. malformed: calls that could not be read; they are part of the content.
    stop: the text that ended the reply, and is not part of it; "" if none did."""

    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    malformed: int = 0
    stop: str = ""


@dataclasses.dataclass(frozen=True)
class Preview:
    """What an unfinished reply says for sure: the whole one's thoughts and content begin with it.
    There is no content before all thoughts are known."""

    thoughts: str = ""
    content: str = ""


class ReplyFormat(Protocol):
    """A family's format. markers: what begins something that is not content. thoughts: the tags
    around them, as `split_marked` takes them; None if a reply is no text with thoughts before it.
    """

    @property
    def markers(self) -> tuple[str, ...]: ...

    @property
    def thoughts(self) -> Tags | None: ...

    def parse(self, text: str, tools: Tools) -> ParsedReply:
        """Parses a whole reply. text: with marked special tokens."""

    def preview(self, text: str) -> Preview:
        """Reads an unfinished reply, of which `parse` may still find anything to be a call. No call
        is known before its end: what is cut in the middle of one, or malformed, is content."""

    def call_grammar(self, tools: Tools, tokens: Mapping[str, int], several: bool) -> str | None:
        """Returns the grammar of a reply that calls one of the tools, or several times; None if
        there is none. tokens: as in `formats.grammar`. ValueError if a schema's reference leads
        nowhere, or if schemas are too much."""


class NotACall(ValueError):
    """What stands where a call should be cannot be read."""


def special(name: str) -> str:
    """Marks a special token."""
    return f"{MARK}{name}{UNMARK}"


def plain_text(text: str) -> str:
    """Returns text of ordinary tokens so that nothing in it looks like a mark."""
    return text.replace(MARK, "\ufffd").replace(UNMARK, "\ufffd")


def without_marks(text: str) -> str:
    """Returns marked text as people read it, with special tokens by their names."""
    return text.replace(MARK, "").replace(UNMARK, "")


def read_json(text: str) -> tuple[Any, str]:
    """Returns the JSON value that begins `text`, and what follows it. NotACall if there is none
    that an answer can hold."""
    try:
        value, rest = strict_json.read_json(text)
        return without_flaw(value), rest
    except ValueError as error:
        raise NotACall(str(error)) from None


def call_of(body: Any, arguments: str = "arguments") -> ToolCall:
    """Returns the call that a JSON object describes. arguments: the name of their field."""
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise NotACall("no name")
    given = body.get(arguments, {})
    if isinstance(given, str):  # JSON within JSON, as the API itself writes it
        given, rest = read_json(given)
        if rest.strip():
            raise NotACall("text after the arguments")
    if not isinstance(given, dict):
        raise NotACall("the arguments are no object")
    return ToolCall(body["name"], json.dumps(given, ensure_ascii=False))


def read_section(
    text: str, opening: str, closing: str, read_call: Callable[[str], tuple[ToolCall, str]]
) -> tuple[list[ToolCall], str]:
    """Returns the calls of a section, and what follows it. opening: the tag before each call.
    closing: of the section; the end of the reply may stand in its place. read_call: returns the
    call that is behind a tag, and what follows it. NotACall if one of them cannot be read."""
    calls: list[ToolCall] = []
    while (text := text.lstrip()).startswith(opening):
        call, text = read_call(text.removeprefix(opening))
        calls.append(call)
    if not calls or (text and not text.startswith(closing)):
        raise NotACall("a section that has something else than calls")
    return calls, text.removeprefix(closing)


def read_arguments(name: str, text: str, closing: str) -> tuple[ToolCall, str]:
    """Returns the call of a tool with the JSON object that begins `text`, and what follows the tag
    that closes it. NotACall if there is none."""
    arguments, rest = read_json(text.lstrip())
    between, closed, rest = rest.partition(closing)
    if between.strip() or not closed:
        raise NotACall("not closed")
    return call_of({"name": name, "arguments": arguments}), rest


def parse_tagged(
    text: str,
    opening: str,
    read: Callable[[str], tuple[Sequence[ToolCall], str]],
    tags: Tags = THOUGHTS,
) -> ParsedReply:
    """Parses a reply of thoughts, content and calls. text: with marked special tokens, which count
    as their names. tags: around the thoughts. The other arguments are those of `read_tagged`."""
    reasoning, rest = split_marked(text, tags)
    content, calls, malformed = read_tagged(rest, opening, read)
    return ParsedReply(content, reasoning, tuple(calls), malformed)


def sendable(text: str, markers: Sequence[str]) -> int:
    """Returns how many characters of an unfinished reply are content for sure: up to the first
    marker, or to what may become one."""
    ends = [text.find(marker) for marker in markers if marker in text]
    for marker in markers:
        longest = min(len(marker) - 1, len(text))
        ends += [len(text) - n for n in range(1, longest + 1) if text.endswith(marker[:n])]
    return min(ends, default=len(text))


def split_marked(text: str, tags: Tags | None) -> tuple[str, str]:
    """Returns thoughts and the rest of a text with marked special tokens, as people read them.
    tags: around the thoughts; marked ones are found where they are special tokens, others where
    they are named. None: there are no thoughts."""
    if tags is None:
        return "", without_marks(text)
    thoughts, rest = split_thoughts(text if MARK in tags[0] else without_marks(text), tags)
    return without_marks(thoughts), without_marks(rest)


def preview_text(text: str, markers: Sequence[str]) -> Preview:
    """Previews a reply of which all before a marker is content. text: with marked special
    tokens."""
    sure = text[: sendable(text, (*markers, MARK))]
    return Preview(content=without_marks(sure).strip())


def preview_tagged(text: str, markers: Sequence[str], tags: Tags = THOUGHTS) -> Preview:
    """Previews a reply whose thoughts are as `split_thoughts` has them."""
    text, (opening, closing) = without_marks(text), tags
    opened = text.lstrip().removeprefix(opening)
    if text.lstrip().startswith(opening) and closing not in opened:
        return Preview(opened[: sendable(opened, (closing,))].strip())
    thoughts, rest = split_thoughts(text, tags)
    return Preview(thoughts, rest[: sendable(rest, markers)].strip())
