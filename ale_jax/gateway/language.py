"""How the policy's model writes: from ids to what a reply says, also while it is being written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ale_jax.gateway.formats.reply import (
    MARK,
    ParsedReply,
    ReplyFormat,
    sendable,
    without_marks,
)
from ale_jax.gateway.formats.thoughts import OPEN as THINK
from ale_jax.gateway.formats.thoughts import split_thoughts
from ale_jax.gateway.requests import NONE, ChatRequest

UNDECODED = "\ufffd"  # at the end: a letter of which some bytes are still to come


@dataclasses.dataclass(frozen=True)
class Language:
    """marked_text: of ids, without those that end a reply, and with marked special tokens."""

    format: ReplyFormat
    marked_text: Callable[[np.ndarray], str]

    def read(self, ids: np.ndarray, request: ChatRequest) -> ParsedReply:
        """A whole reply. It ends before the first of the texts that were asked to stop it."""
        text = self.marked_text(ids)
        if stop := _first_stop(text, request.options.stop):
            text = text.partition(stop)[0]
        if request.tool_choice == NONE:
            return ParsedReply(without_marks(text).strip())
        functions = [tool["function"] for tool in request.tools]
        said = self.format.parse(text, {each["name"]: each["parameters"] for each in functions})
        if request.parallel_calls:
            return said
        return dataclasses.replace(said, calls=said.calls[:1])

    def end_of(self, ids: np.ndarray, stops: Sequence[str]) -> int | None:
        """After how many of the ids one of the texts is complete; None if none is."""
        if not _first_stop(self.marked_text(ids), stops):
            return None
        lengths = range(1, len(ids) + 1)
        return next(n for n in lengths if _first_stop(self.marked_text(ids[:n]), stops))

    def preview(self, ids: np.ndarray, stops: Sequence[str]) -> str:
        """The content of an unfinished reply, as far as it is sure: the whole reply's begins with
        it."""
        sure = self.marked_text(ids)
        if THINK in self.format.markers:
            thoughts, rest = split_thoughts(sure)
            sure = rest if thoughts else sure
        sure = sure[: sendable(sure, (*self.format.markers, MARK, *stops))]
        return sure.strip().rstrip(UNDECODED).rstrip()


def _first_stop(text: str, stops: Sequence[str]) -> str:
    """The one that is met first; "" if none is."""
    found = [stop for stop in stops if stop in text]
    return min(found, key=text.index, default="")
