"""The events of a response that is sent while it is written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ale_jax.gateway.api.openai_chat import message_of
from ale_jax.gateway.api.openai_responses import (
    ResponsesBody,
    message_item,
    output_items,
    response,
    sse,
    text_part,
)
from ale_jax.gateway.api.responses_tools import origins
from ale_jax.gateway.requests import ApiError, ChatResult, Usage

NO_USAGE = Usage(0, 0)


class ResponsesEvents:
    """As `gateway.streaming` wants it. Text that is sent early comes in a first item; thoughts,
    which are known at the end, and calls in items behind it. Clients build an item from its deltas,
    so each begins empty, however much of it is known."""

    def __init__(self, body: ResponsesBody):
        self._body = body
        self._number = 0
        self._has_text = False
        self._head = ChatResult(secrets.token_hex(12), int(time.time()), body.model, (), NO_USAGE)

    def start(self, head: ChatResult) -> Iterator[str]:
        self._head = head
        begun = response(head, self._body, None)
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        item = message_item(head, None)
        if not self._has_text:
            self._has_text = True
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._part_added(0, item, text_part(""))
        yield self._event("response.output_text.delta", delta=more, logprobs=[], **_place(0, item))

    def end(self, result: ChatResult, sent: Mapping[int, str]) -> Iterator[str]:
        items = list(output_items(result, origins(self._body.tools)))
        if self._has_text:
            items.sort(key=lambda item: item["type"] != "message")  # it has the first place
        for index, item in enumerate(items):
            is_new = index > 0 or not self._has_text
            if is_new:
                begun = item | _EMPTY[item["type"]] | {"status": "in_progress"}
                yield self._event("response.output_item.added", output_index=index, item=begun)
            if item["type"] in _WRITTEN:
                yield from self._call(index, item)
            else:
                yield from self._text(index, item, None if is_new else sent[0])
            yield self._event("response.output_item.done", output_index=index, item=item)
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

    def _call(self, index: int, item: dict[str, Any]) -> Iterator[str]:
        of_call = {"item_id": item["id"], "output_index": index}
        written = _WRITTEN[item["type"]]
        kind, text = f"response.{item['type']}_{written}", item[written]
        yield self._event(f"{kind}.delta", delta=text, **of_call)
        name = {"name": item["name"]} if item["type"] == "function_call" else {}
        yield self._event(f"{kind}.done", **{written: text}, **name, **of_call)

    def _text(self, index: int, item: dict[str, Any], sent: str | None) -> Iterator[str]:
        """The rest of a message or of thoughts. sent: None if not even its part was added."""
        (part,) = item["content"]
        kind, text, place = f"response.{part['type']}", part["text"], _place(index, item)
        # Thoughts have none. Those of a text come with its end, as they are of the whole reply.
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        none_yet: dict[str, list[Any]] = {"logprobs": []} if logprobs else {}
        if sent is None:
            yield self._part_added(index, item, part | {"text": ""} | none_yet)
        if rest := text[len(sent or "") :]:
            yield self._event(f"{kind}.delta", delta=rest, **none_yet, **place)
        yield self._event(f"{kind}.done", text=text, **logprobs, **place)
        yield self._event("response.content_part.done", part=part, **place)

    def _part_added(self, index: int, item: dict[str, Any], part: dict[str, Any]) -> str:
        return self._event("response.content_part.added", part=part, **_place(index, item))

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
# What the policy writes of a call.
_WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}


def _place(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": index, "content_index": 0}
