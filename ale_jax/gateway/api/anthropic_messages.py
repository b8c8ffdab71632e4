"""Anthropic's API of messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ale_jax.gateway.api.anthropic_content import Block, MessagesInput, messages_of, text_of
from ale_jax.gateway.api.fields import MAX_TOOLS, Fields
from ale_jax.gateway.api.tools import function, require_offered
from ale_jax.gateway.json_values import without_flaw
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import (
    AUTO,
    MAX_STOP,
    NONE,
    REQUIRED,
    ApiError,
    ChatRequest,
    ChatResult,
    Choice,
    ContextFull,
    SampleOptions,
    Usage,
)

MAX_STOPS = 16
# Claude Code hangs up if it gets nothing but pings for 300 s. A block of thoughts, though it stays
# empty, is more than that.
MOST_PINGS = 60
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

Stop = Annotated[str, Field(max_length=MAX_STOP)]


class MessagesTool(Fields):
    """type: of a tool that the client has not described, since the model knows it, or a server runs
    it."""

    type: Annotated[str, Field(max_length=256)] = "custom"
    name: Annotated[str, Field(max_length=256)] = ""
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class CountBody(Fields):
    """What the tokens of are counted. Fields that are not listed are ignored."""

    _can_be_passed_on = model_validator(mode="before")(without_flaw)

    model: str = ""
    system: str | list[Block] = ""
    messages: Annotated[list[MessagesInput], Field(min_length=1)]
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: ToolChoice | None = None


class MessagesBody(CountBody):
    """A request. Fields that are not listed are ignored."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS, default_factory=list)]
    stream: bool = False


def chat_request(body: CountBody) -> ChatRequest:
    """Translates a body of the API. ApiError (400) if it asks for what there is not."""
    unseen: list[str] = []
    system = text_of(body.system, "system", unseen)
    messages = [ChatMessage("system", system)] if system else []
    for number, message in enumerate(body.messages):
        messages += messages_of(message, f"messages.{number}.content", unseen)
    tools = tuple(_tools(body.tools, unseen))
    choice = body.tool_choice or ToolChoice(type="auto")
    names = {"auto": AUTO, "any": REQUIRED, "none": NONE, "tool": choice.name}
    if choice.type == "tool":
        require_offered(choice.name, tools)
    return ChatRequest(
        model=body.model,
        messages=tuple(messages),
        tools=tools,
        tool_choice=names[choice.type],
        parallel_calls=not choice.disable_parallel_tool_use,
        options=_options(body) if isinstance(body, MessagesBody) else SampleOptions(),
        stream=isinstance(body, MessagesBody) and body.stream,
        unseen=tuple(unseen),
    )


def message(result: ChatResult) -> dict[str, Any]:
    (choice,) = result.choices
    content, used = list(_blocks(choice.message)), usage(result.usage)
    return _head(result) | {"content": content, "usage": used} | _ending(choice)


class MessagesEvents:
    """A streamed reply, as `gateway.streaming` wants it: a block of thoughts, one of text, and one
    for each call."""

    def __init__(self) -> None:
        self._index = -1  # of the newest block
        self._open = ""  # its type, while it is written
        self._pings = 0

    def start(self, head: ChatResult) -> Iterator[str]:
        told: dict[str, Any] = {"content": [], "stop_reason": None, "usage": usage(head.usage)}
        yield sse({"type": "message_start", "message": _head(head) | told})

    def silence(self, head: ChatResult) -> Iterator[str]:
        if not self._open and self._pings < MOST_PINGS:
            self._pings += 1
            yield sse({"type": "ping"})
        else:
            yield from self._more(self._open or "thinking", "")

    def thoughts(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return self._more("thinking", more)

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return self._more("text", more)

    def end(self, result: ChatResult) -> Iterator[str]:
        (choice,) = result.choices
        message = choice.message
        if not (message.content or message.tool_calls):
            yield from self._more("text", "")
        yield from self._stop()
        for call in message.tool_calls:
            block = _call_block(call)
            yield from self._begin(block | {"input": {}})
            yield self._delta(
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            )
            yield from self._stop()
        yield sse({"type": "message_delta", "delta": _ending(choice), "usage": usage(result.usage)})
        yield sse({"type": "message_stop"})

    def _more(self, kind: str, text: str) -> Iterator[str]:
        """More of the text of a block of this type, which begins if there is none yet."""
        if self._open != kind:
            yield from self._stop()
            yield from self._begin(_text_block(kind, ""))
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[str]:
        self._index, self._open = self._index + 1, block["type"]
        yield sse({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> str:
        return sse({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> Iterator[str]:
        if self._open:
            self._open = ""
            yield sse({"type": "content_block_stop", "index": self._index})

    def failed(self, refused: ApiError) -> str:
        return sse(error(refused))


def usage(used: Usage) -> dict[str, int]:
    return {
        "input_tokens": used.prompt - used.cached,
        "cache_read_input_tokens": used.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": used.completion,
    }


def error(failed: ApiError) -> dict[str, Any]:
    usual = "invalid_request_error" if failed.status < 500 else "api_error"
    told = {"type": ERROR_TYPES.get(failed.status, usual), "message": _message_of(failed)}
    return {"type": "error", "error": told}


def _message_of(failed: ApiError) -> str:
    """In the words by which Claude Code knows that it may shorten the conversation."""
    if not isinstance(failed, ContextFull):
        return failed.message
    if failed.size is None:
        return "prompt is too long"
    tokens, most = failed.size
    return f"prompt is too long: {tokens} tokens > {most} maximum"


def sse(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"


def _tools(offered: Sequence[MessagesTool], unseen: list[str]) -> Iterator[dict[str, Any]]:
    for number, tool in enumerate(offered):
        if tool.type != "custom":
            unseen.append(f"tool {tool.type}")
        elif not tool.name:
            raise ApiError(400, "name is missing", f"tools.{number}.name")
        else:
            yield function(tool.name, tool.description, tool.input_schema)


def _options(body: MessagesBody) -> SampleOptions:
    return SampleOptions(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=tuple(filter(None, body.stop_sequences)),
    )


def _head(result: ChatResult) -> dict[str, Any]:
    return {
        "id": f"msg_{result.id}",
        "type": "message",
        "role": "assistant",
        "model": result.model,
        "stop_sequence": None,
    }


def _ending(choice: Choice) -> dict[str, Any]:
    if choice.finish == "stop" and choice.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    return {"stop_reason": STOP_REASONS[choice.finish], "stop_sequence": None}


def _blocks(message: ChatMessage) -> Iterator[dict[str, Any]]:
    if message.reasoning:
        yield _text_block("thinking", message.reasoning)
    if message.content or not message.tool_calls:
        yield _text_block("text", message.content)
    yield from map(_call_block, message.tool_calls)


def _text_block(kind: str, text: str) -> dict[str, Any]:
    """kind: "text" or "thinking"."""
    return {"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {})


def _call_block(call: ToolCall) -> dict[str, Any]:
    arguments = json.loads(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
