"""The events of a response that is sent while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ale_jax.gateway.api.openai_responses import (
    ResponsesBody,
    message_item,
    output_items,
    response,
    sse,
    text_part,
)
from ale_jax.gateway.requests import ApiError, ChatResult


class Events:
    """As `gateway.streaming` wants it. Text comes in a first item; thoughts, which are known at the
    end, and calls in items behind it."""

    def __init__(self, body: ResponsesBody):
        self._body = body
        self._number = 0
        self._has_text = False

    def start(self, head: ChatResult) -> Iterator[str]:
        begun = response(head, self._body, None)
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        of_text = _place(message_item(head, None))
        if not self._has_text:
            self._has_text = True
            item = message_item(head, None)
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", part=text_part(""), **of_text)
        yield self._event("response.output_text.delta", delta=more, logprobs=[], **of_text)

    def end(self, result: ChatResult, sent: Mapping[int, str]) -> Iterator[str]:
        items = list(output_items(result))
        if self._has_text:
            text = result.choices[0].message.content
            if rest := text[len(sent[0]) :]:
                yield from self.content(result, 0, rest)
            items.sort(key=lambda item: item["type"] != "message")  # it has the first place
            yield from self._text_end(items[0])
        for index, item in enumerate(items):
            if index or not self._has_text:
                yield from self._whole(index, item)
        whole = response(result, self._body, items)
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, refused: ApiError) -> str:
        code = str(refused.code or refused.status)
        return self._event("error", code=code, message=refused.message, param=refused.field)

    def _text_end(self, item: dict[str, Any]) -> Iterator[str]:
        of_text, (part,) = _place(item), item["content"]
        told = {"text": part["text"], "logprobs": part["logprobs"]} | of_text
        yield self._event("response.output_text.done", **told)
        yield self._event("response.content_part.done", part=part, **of_text)
        yield self._event("response.output_item.done", output_index=0, item=item)

    def _whole(self, index: int, item: dict[str, Any]) -> Iterator[str]:
        yield self._event("response.output_item.added", output_index=index, item=item)
        if item["type"] == "function_call":
            of_call = {"item_id": item["id"], "output_index": index}
            arguments = item["arguments"]
            yield self._event("response.function_call_arguments.delta", delta=arguments, **of_call)
            told = {"arguments": arguments, "name": item["name"]} | of_call
            yield self._event("response.function_call_arguments.done", **told)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        return sse(event)


def _place(item: dict[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": 0, "content_index": 0}
