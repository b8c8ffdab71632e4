"""The events of a response that is sent while it is written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

from ale_jax.gateway.api.openai_chat import message_of
from ale_jax.gateway.api.openai_responses import (
    ResponsesBody,
    message_item,
    output_items,
    reasoning_item,
    response,
    sse,
    text_part,
)
from ale_jax.gateway.api.responses_tools import origins
from ale_jax.gateway.requests import ApiError, ChatResult, Usage

NO_USAGE = Usage(0, 0)
IN_PROGRESS = "in_progress"


class ResponsesEvents:
    """As `gateway.streaming` wants it. Clients build an item from its deltas, so each begins empty,
    however much of it is known."""

    def __init__(self, body: ResponsesBody):
        self._body = body
        self._number = 0
        self._index = -1  # of the newest item
        self._open: dict[str, Any] | None = None  # it, as it began, while it is written
        self._text = ""  # of it
        self._head = ChatResult(secrets.token_hex(12), int(time.time()), body.model, (), NO_USAGE)

    def start(self, head: ChatResult) -> Iterator[str]:
        self._head = head
        begun = response(head, self._body, None)
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def silence(self, head: ChatResult) -> Iterator[str]:
        if self._open:
            yield self._delta("")
        else:
            # Without what the client has sent, which may be long, and it has had once.
            begun = response(head, self._body, None) | {"instructions": None, "tools": []}
            yield self._event("response.in_progress", response=begun)

    def thoughts(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return self._more(reasoning_item(head, "", IN_PROGRESS), more)

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        if self._open and self._open["type"] == "reasoning":
            yield from self._done(reasoning_item(head, self._text, "completed"))
        yield from self._more(message_item(head, None), more)

    def end(self, result: ChatResult) -> Iterator[str]:
        items = list(output_items(result, origins(self._body.tools)))
        first = self._index if self._open else self._index + 1  # that is not done
        for index, item in enumerate(items[first:], start=first):
            if index > self._index:
                yield from self._begin(item | _EMPTY[item["type"]] | {"status": IN_PROGRESS})
            yield from self._done(item)
        whole = response(result, self._body, items)
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, refused: ApiError) -> str:
        """Some clients know an error by the first event, of which OpenAI's read `error`, and others
        by the second."""
        code, text = str(refused.code or refused.status), message_of(refused)
        error = {"code": code, "message": text}
        first = self._event("error", **error, param=refused.field, error=error)
        ended = response(self._head, self._body, None) | {"status": "failed", "error": error}
        return first + self._event("response.failed", response=ended)

    def _more(self, item: dict[str, Any], text: str) -> Iterator[str]:
        """More of the text of an item, which begins if there is none yet."""
        if not self._open:
            yield from self._begin(item)
        yield self._delta(text)

    def _begin(self, item: dict[str, Any]) -> Iterator[str]:
        self._index, self._open, self._text = self._index + 1, item, ""
        yield self._event("response.output_item.added", output_index=self._index, item=item)
        if part := _NO_TEXT.get(item["type"]):
            yield self._event("response.content_part.added", part=part, **self._place())

    def _delta(self, text: str) -> str:
        assert self._open
        self._text += text
        part = _NO_TEXT[self._open["type"]]
        none_yet: dict[str, Any] = {"logprobs": []} if "logprobs" in part else {}
        return self._event(
            f"response.{part['type']}.delta", delta=text, **none_yet, **self._place()
        )

    def _done(self, item: dict[str, Any]) -> Iterator[str]:
        """What is left of the item that is written."""
        yield from self._call(item) if item["type"] in _WRITTEN else self._rest(item)
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._open = None

    def _call(self, item: dict[str, Any]) -> Iterator[str]:
        of_call = {"item_id": item["id"], "output_index": self._index}
        written = _WRITTEN[item["type"]]
        kind, text = f"response.{item['type']}_{written}", item[written]
        yield self._event(f"{kind}.delta", delta=text, **of_call)
        name = {"name": item["name"]} if item["type"] == "function_call" else {}
        yield self._event(f"{kind}.done", **{written: text}, **name, **of_call)

    def _rest(self, item: dict[str, Any]) -> Iterator[str]:
        """Of a message or of thoughts."""
        (part,) = item["content"]
        text = part["text"]
        # Thoughts have no log-probabilities. Those of a text come with its end, as they are of the
        # whole reply.
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        if rest := text[len(self._text) :]:
            yield self._delta(rest)
        yield self._event(f"response.{part['type']}.done", text=text, **logprobs, **self._place())
        yield self._event("response.content_part.done", part=part, **self._place())

    def _place(self) -> dict[str, Any]:
        assert self._open
        return {"item_id": self._open["id"], "output_index": self._index, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        return sse(event)


# What is not yet in an item that begins.
_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}
# The part that holds an item's text, before there is any.
_NO_TEXT = {"message": text_part(""), "reasoning": {"type": "reasoning_text", "text": ""}}
# What the policy writes of a call.
_WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}
