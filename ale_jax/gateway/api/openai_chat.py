"""OpenAI's API of chat completions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ale_jax.gateway.api.fields import MAX_EFFORT, MAX_TOOLS, Fields, not_text
from ale_jax.gateway.api.openai_fields import MAX_TOP_LOGPROBS, SamplingFields
from ale_jax.gateway.api.tools import (
    CustomFormat,
    allowed_of,
    custom_arguments,
    custom_function,
    custom_input,
    function,
    require_offered,
)
from ale_jax.gateway.language import UNDECODED
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import (
    AUTO,
    ApiError,
    ChatRequest,
    ChatResult,
    Choice,
    ContextFull,
    TokenLogprob,
    Usage,
)

# What a part of the content is that is no text, by its type.
MEDIA = {"image_url": "image", "input_audio": "audio", "file": "file", "video_url": "video"}


class ChatPart(Fields):
    type: str
    text: str = ""
    refusal: str = ""


class Function(Fields):
    name: Annotated[str, Field(max_length=256)]
    arguments: str = "{}"


class CustomCall(Fields):
    name: Annotated[str, Field(max_length=256)]
    input: str = ""


class ChatToolCall(Fields):
    id: str = ""
    function: Function | None = None
    custom: CustomCall | None = None


class ChatInput(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ChatPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None


class ToolFunction(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str = ""
    parameters: Annotated[dict[str, Any], Field(default_factory=dict)]


class CustomTool(Fields):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str = ""
    format: CustomFormat = CustomFormat()


class ChatTool(Fields):
    type: Annotated[str, Field(max_length=256)] = "function"
    function: ToolFunction | None = None
    custom: CustomTool | None = None


class ChatNamed(Fields):
    name: str = ""


class ChatAllowedTool(Fields):
    """A function, a custom tool, or one of a server, which has no name here."""

    function: ChatNamed = ChatNamed()
    custom: ChatNamed = ChatNamed()


class ChatAllowed(Fields):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChatAllowedTool], Field(max_length=MAX_TOOLS)]


class ChatToolChoice(Fields):
    type: Literal["function", "custom", "allowed_tools"]
    function: ChatNamed = ChatNamed()
    custom: ChatNamed = ChatNamed()
    allowed_tools: ChatAllowed | None = None


class JsonSchema(Fields):
    name: str = ""
    schema_: Annotated[dict[str, Any], Field(alias="schema", default_factory=dict)]


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class ChatBody(SamplingFields):
    """A request. Fields that are not listed are ignored."""

    messages: Annotated[list[ChatInput], Field(min_length=1)]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: Literal["auto", "none", "required"] | ChatToolChoice | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat()
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: Annotated[str, Field(max_length=MAX_EFFORT)] = ""
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0


def chat_request(body: ChatBody) -> ChatRequest:
    """Translates a body of the API. ApiError (400) if it asks for what there is not."""
    unseen: list[str] = []
    tools = tuple(_tools(body.tools, unseen))
    choice, allowed = _choice_of(body.tool_choice or AUTO, tools)
    return ChatRequest(
        model=body.model,
        messages=tuple(_message(each, n, unseen) for n, each in enumerate(body.messages)),
        tools=tools,
        tool_choice=choice,
        allowed=allowed,
        parallel_calls=body.parallel_tool_calls,
        schema=_schema(body.response_format),
        options=body.options(
            body.max_completion_tokens or body.max_tokens,
            body.top_logprobs if body.logprobs else None,
        ),
        variables=body.chat_template_kwargs,
        effort=body.reasoning_effort,
        stream=body.stream,
        with_usage=body.with_usage,
        unseen=tuple(unseen),
    )


def custom_names(body: ChatBody) -> frozenset[str]:
    """Returns the names of the custom tools, which are called in another way than functions."""
    return frozenset(tool.custom.name for tool in body.tools if tool.custom)


def completion(result: ChatResult, custom: Collection[str] = ()) -> dict[str, Any]:
    """custom: as from `custom_names`."""
    return _head(result.id, result.created, result.model, "chat.completion") | {
        "choices": [_choice(n, choice, custom) for n, choice in enumerate(result.choices)],
        "usage": usage(result.usage),
    }


class ChatEvents:
    """A streamed reply, as `gateway.streaming` wants it."""

    def __init__(self, with_usage: bool, custom: Collection[str] = ()):
        """custom: as from `custom_names`."""
        self._with_usage, self._custom = with_usage, custom
        self._started: set[int] = set()

    def start(self, head: ChatResult) -> Iterator[str]:
        return iter(())

    def silence(self, head: ChatResult) -> Iterator[str]:
        return self._delta(head, 0, {} if 0 in self._started else {"content": ""})

    def thoughts(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return self._delta(head, number, {"reasoning_content": more})

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return self._delta(head, number, {"content": more})

    def end(self, result: ChatResult) -> Iterator[str]:
        for number, choice in enumerate(result.choices):
            if number not in self._started:
                yield from self.content(result, number, "")
            more: dict[str, Any] = {}
            if choice.message.tool_calls:
                calls = enumerate(choice.message.tool_calls)
                more["tool_calls"] = [
                    {"index": n, **_call(each, self._custom)} for n, each in calls
                ]
            last = chunk(result, number, more, choice.finish)
            last["choices"][0]["logprobs"] = logprobs(choice)
            yield sse(last)
        if self._with_usage:
            yield sse(usage_chunk(result))
        yield DONE

    def _delta(self, head: ChatResult, number: int, delta: dict[str, Any]) -> Iterator[str]:
        if number not in self._started:
            self._started.add(number)
            delta["role"] = "assistant"
        yield sse(chunk(head, number, delta))

    def failed(self, refused: ApiError) -> str:
        return sse(error(refused))


def chunk(
    result: ChatResult, index: int, delta: dict[str, Any], finish: str | None = None
) -> dict[str, Any]:
    """Returns a piece of a streamed reply."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
    head = _head(result.id, result.created, result.model, "chat.completion.chunk")
    return head | {"choices": [choice]}


def usage_chunk(result: ChatResult) -> dict[str, Any]:
    """Returns the last piece of a streamed reply, which has the usage and no choices."""
    head = _head(result.id, result.created, result.model, "chat.completion.chunk")
    return head | {"choices": [], "usage": usage(result.usage)}


def usage(used: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }


def error(failed: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if failed.status < 500 else "server_error"
    code, text = failed.code or failed.status, message_of(failed)
    return {"error": {"message": text, "type": kind, "param": failed.field, "code": code}}


def message_of(failed: ApiError) -> str:
    """Returns why a request is refused, in the words by which clients know that they may shorten
    it."""
    if not isinstance(failed, ContextFull):
        return failed.message
    if failed.size is None:
        return "Your input exceeds the context window of this model."
    tokens, most = failed.size
    return (
        f"Your input exceeds the context window: this model's maximum context length is {most} "
        f"tokens. However, your messages resulted in {tokens} tokens, with one for the reply."
    )


def _tools(offered: Sequence[ChatTool], unseen: list[str]) -> Iterator[dict[str, Any]]:
    for number, tool in enumerate(offered):
        match tool.type:
            case "function":
                if not (told := tool.function):
                    raise ApiError(400, "function is missing", f"tools.{number}.function")
                yield function(told.name, told.description, told.parameters)
            case "custom":
                if not (custom := tool.custom):
                    raise ApiError(400, "custom is missing", f"tools.{number}.custom")
                if custom.name in [t.function.name for t in offered if t.function]:
                    text = f"a function is called {custom.name!r:.80}, too"
                    raise ApiError(400, text, f"tools.{number}.custom.name")
                yield custom_function(custom.name, custom.description, custom.format)
            case _:
                unseen.append(f"tool {tool.type}")


def _choice_of(
    choice: str | ChatToolChoice, tools: Sequence[dict[str, Any]]
) -> tuple[str, tuple[str, ...] | None]:
    """The choice, and the tools that are allowed; None for all."""
    if isinstance(choice, str):
        return choice, None
    if choice.type != "allowed_tools":
        return require_offered(choice.function.name or choice.custom.name, tools), None
    if not (told := choice.allowed_tools):
        raise ApiError(400, "allowed_tools is missing", "tool_choice.allowed_tools")
    return told.mode, allowed_of([t.function.name or t.custom.name for t in told.tools], tools)


def _message(message: ChatInput, number: int, unseen: list[str]) -> ChatMessage:
    field = f"messages.{number}"
    if message.role == "tool" and not message.tool_call_id:
        raise ApiError(400, "a tool's message needs a tool_call_id", f"{field}.tool_call_id")
    if message.role != "assistant" and message.content is None:
        raise ApiError(400, "content is missing", f"{field}.content")
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content="".join(_texts(message.content, field, unseen)),
        reasoning=message.reasoning_content or "",
        tool_calls=tuple(_told_call(call, field) for call in message.tool_calls or ()),
        answers=message.tool_call_id or "",
    )


def _told_call(call: ChatToolCall, field: str) -> ToolCall:
    if call.function:
        return ToolCall(call.function.name, call.function.arguments, call.id)
    if call.custom:
        return ToolCall(call.custom.name, custom_arguments(call.custom.input), call.id)
    raise ApiError(400, "a call needs a function", f"{field}.tool_calls")


def _texts(content: str | list[ChatPart] | None, field: str, unseen: list[str]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        if part.type in ("text", "refusal"):
            yield part.text or part.refusal
        elif part.type in MEDIA:
            yield not_text(MEDIA[part.type], unseen)
        else:
            raise ApiError(400, f"content of type {part.type!r:.80}: there is only text", field)


def _schema(wanted: ResponseFormat) -> dict[str, Any] | None:
    match wanted.type:
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            if wanted.json_schema is None:
                raise ApiError(400, "json_schema is missing", "response_format.json_schema")
            return wanted.json_schema.schema_
    return None


def _head(id: str, created: int, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": created, "model": model}


def _choice(number: int, choice: Choice, custom: Collection[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.message.content or None}
    if choice.message.reasoning:
        message["reasoning_content"] = choice.message.reasoning
    if choice.message.tool_calls:
        message["tool_calls"] = [_call(each, custom) for each in choice.message.tool_calls]
    elif message["content"] is None:
        message["content"] = ""
    return {
        "index": number,
        "message": message,
        "finish_reason": choice.finish,
        "logprobs": logprobs(choice),
    }


def logprobs(choice: Choice) -> dict[str, Any] | None:
    """Returns the log-probabilities of a reply as the API tells them; None if none were asked
    for."""
    if choice.logprobs is None:
        return None
    return {"content": list(map(token_logprob, choice.logprobs)), "refusal": None}


def token_logprob(token: TokenLogprob, unknown: list[int] | None = None) -> dict[str, Any]:
    """Returns a token with its log-probability as the API tells it. unknown: the `bytes` of a token
    whose text does not tell them."""
    top = [_logprob(each, unknown) for each in token.top]
    return _logprob(token, unknown) | {"top_logprobs": top}


def _logprob(token: TokenLogprob, unknown: list[int] | None) -> dict[str, Any]:
    named = {"token": token.text, "logprob": token.logprob}
    if token.data is not None:
        return named | {"bytes": list(token.data)}
    # U+FFFD is in the place of the bytes of a part of a character: its own would be wrong.
    is_known = UNDECODED not in token.text
    return named | {"bytes": list(token.text.encode("utf-8", "replace")) if is_known else unknown}


def _call(call: ToolCall, custom: Collection[str]) -> dict[str, Any]:
    if call.name in custom:
        told = {"name": call.name, "input": custom_input(call.arguments)}
        return {"id": call.id, "type": "custom", "custom": told}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def sse(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
