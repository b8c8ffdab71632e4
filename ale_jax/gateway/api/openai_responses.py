"""OpenAI's API of responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ale_jax.gateway.api.openai_chat import token_logprob
from ale_jax.gateway.json_values import without_flaw
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import (
    ApiError,
    ChatRequest,
    ChatResult,
    Choice,
    SampleOptions,
    TokenLogprob,
    Usage,
)

MAX_TOOLS, MAX_TOP_LOGPROBS = 128, 20
TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


class ResponsesFields(BaseModel):
    model_config = ConfigDict(extra="ignore")


class ResponsesPart(ResponsesFields):
    type: str
    text: str = ""
    refusal: str = ""


class Item(ResponsesFields):
    """An item of the conversation; which fields there are depends on its type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[ResponsesPart] | None = None
    summary: list[ResponsesPart] = []
    name: str = ""
    arguments: str = "{}"
    call_id: str = ""
    output: str | list[ResponsesPart] = ""


class ResponsesTool(ResponsesFields):
    type: str
    name: Annotated[str, Field(max_length=256)] = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ResponsesToolChoice(ResponsesFields):
    type: Literal["function"]
    name: str


class TextFormat(ResponsesFields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}
    strict: bool | None = None


class TextOptions(ResponsesFields):
    format: TextFormat = TextFormat()


class ResponsesBody(ResponsesFields):
    """A request. Fields that are not listed are ignored."""

    _can_be_passed_on = model_validator(mode="before")(without_flaw)

    model: str = ""
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: Literal["auto", "none", "required"] | ResponsesToolChoice = "auto"
    parallel_tool_calls: bool | None = True
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextOptions = TextOptions()
    stream: bool | None = False
    store: bool | None = True


def chat_request(body: ResponsesBody, before: Sequence[ChatMessage] = ()) -> ChatRequest:
    """Translates a body of the API. before: what `history` says of the previous response. ApiError
    (400) if it asks for what there is not."""
    items = [Item(content=body.input)] if isinstance(body.input, str) else body.input
    messages = [ChatMessage("system", body.instructions)] if body.instructions else []
    messages += before
    for number, item in enumerate(items):
        _add(messages, item, f"input.{number}")
    tools = tuple(_tool(tool, f"tools.{number}") for number, tool in enumerate(body.tools))
    choice: str
    if isinstance(body.tool_choice, str):
        choice = body.tool_choice
    else:
        choice = body.tool_choice.name
        if choice not in [tool.name for tool in body.tools]:
            text = f"tool_choice names {choice!r}, which is not in tools"
            raise ApiError(400, text, "tool_choice")
    return ChatRequest(
        model=body.model,
        messages=tuple(messages),
        tools=tools,
        tool_choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        schema=_schema(body.text.format),
        options=SampleOptions(
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=body.top_logprobs or None,
        ),
        stream=bool(body.stream),
    )


def history(body: ResponsesBody, asked: ChatRequest, result: ChatResult) -> tuple[ChatMessage, ...]:
    """Returns the conversation up to the response, without the instructions, which do not count
    later."""
    told = asked.messages[1:] if body.instructions else asked.messages
    return (*told, result.choices[0].message)


def response_id(result: ChatResult) -> str:
    return f"resp_{result.id}"


def response(result: ChatResult, body: ResponsesBody, items: list[dict[str, Any]] | None) -> dict:
    """Returns the response as far as it is known. items: None while it is written."""
    is_cut = bool(result.choices) and result.choices[0].finish == "length"
    status = "in_progress" if items is None else "incomplete" if is_cut else "completed"
    choice = body.tool_choice
    return {
        "id": response_id(result),
        "object": "response",
        "created_at": result.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "model": result.model,
        "output": items or [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": _format(body.text.format)},
        "tool_choice": choice.model_dump() if isinstance(choice, ResponsesToolChoice) else choice,
        "tools": [tool.model_dump() | {"strict": False} for tool in body.tools],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None if items is None else usage(result.usage),
    }


def output_items(result: ChatResult) -> Iterator[dict[str, Any]]:
    """Yields what the policy said: its thoughts, its text, its calls. Of a reply that was cut off,
    a call is complete, as it could be read; the text was cut, or the thoughts if nothing is behind
    them.
    """
    (choice,) = result.choices
    message = choice.message
    if message.reasoning:
        is_last = not (message.content or message.tool_calls)
        yield {
            "id": f"rs_{result.id}",
            "type": "reasoning",
            "status": _end_status(choice) if is_last else "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": message.reasoning}],
        }
    if message.content or not message.tool_calls:
        yield message_item(result, choice)
    for number, call in enumerate(message.tool_calls):
        told = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        item = {"id": f"fc_{result.id}_{number}", "type": "function_call", "status": "completed"}
        yield item | told


def message_item(result: ChatResult, choice: Choice | None) -> dict[str, Any]:
    """Returns the item of the text. choice: None while it is written."""
    parts = [] if choice is None else [text_part(choice.message.content, choice.logprobs or ())]
    return {
        "id": f"msg_{result.id}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress" if choice is None else _end_status(choice),
        "content": parts,
    }


def text_part(text: str, tokens: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
    """Returns the part that holds a text. tokens: of the whole reply, as in chat completions."""
    # Here `bytes` may not be null, as they may in chat completions.
    logprobs = [token_logprob(token, unknown=[]) for token in tokens]
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def usage(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt + used.completion,
    }


def _add(messages: list[ChatMessage], item: Item, field: str) -> None:
    """Adds an item to a conversation. Thoughts, text and calls of the policy that follow each other
    are one message of its."""
    match item.type:
        case "message" if item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            messages.append(ChatMessage(role, _text(item.content, field)))
        case "message":
            _join(messages, ChatMessage("assistant", _text(item.content, field)))
        case "reasoning":
            thoughts = _text(item.content, field) or _text(item.summary, field)
            _join(messages, ChatMessage("assistant", "", thoughts))
        case "function_call":
            call = ToolCall(item.name, item.arguments, item.call_id)
            _join(messages, ChatMessage("assistant", "", tool_calls=(call,)))
        case "function_call_output":
            if not item.call_id:
                raise ApiError(400, "call_id is missing", f"{field}.call_id")
            text = _text(item.output, field)
            messages.append(ChatMessage("tool", text, answers=item.call_id))
        case _:
            raise ApiError(400, f"items of type {item.type!r:.80} are not known", f"{field}.type")


def _join(messages: list[ChatMessage], more: ChatMessage) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (last.content and more.content):
        messages.append(more)
        return
    messages[-1] = ChatMessage(
        "assistant",
        last.content + more.content,
        last.reasoning + more.reasoning,
        last.tool_calls + more.tool_calls,
    )


def _text(content: str | list[ResponsesPart] | None, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXTS:
            raise ApiError(400, f"content of type {part.type!r:.80}: there is only text", field)
    return "".join(part.text or part.refusal for part in content)


def _tool(tool: ResponsesTool, field: str) -> dict[str, Any]:
    if tool.type != "function" or not tool.name:
        raise ApiError(400, f"a tool of type {tool.type!r:.80}: there are functions only", field)
    described = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": described | {"parameters": tool.parameters or {}}}


def _end_status(choice: Choice) -> str:
    """Of what the reply ended with."""
    return "incomplete" if choice.finish == "length" else "completed"


def _format(wanted: TextFormat) -> dict[str, Any]:
    """As it was asked for. The other types have no more fields."""
    fields = None if wanted.type == "json_schema" else {"type"}
    return wanted.model_dump(by_alias=True, include=fields)


def _schema(wanted: TextFormat) -> dict[str, Any] | None:
    match wanted.type:
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            return wanted.schema_
    return None


def sse(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
