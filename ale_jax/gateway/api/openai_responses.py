"""OpenAI's API of responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ale_jax.gateway.api.fields import MAX_EFFORT, MAX_TOOLS, Fields
from ale_jax.gateway.api.openai_chat import token_logprob
from ale_jax.gateway.api.responses_items import FindReply, Item, Told
from ale_jax.gateway.api.responses_tools import (
    Origin,
    ResponsesChoice,
    ResponsesTool,
    choice_of,
    functions,
    told_choice,
    told_tools,
)
from ale_jax.gateway.api.tools import custom_input
from ale_jax.gateway.json_values import without_flaw
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import (
    ChatRequest,
    ChatResult,
    Choice,
    SampleOptions,
    TokenLogprob,
    Usage,
)

MAX_TOP_LOGPROBS = 20


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = Field(default_factory=dict)
    strict: bool | None = None


class TextOptions(Fields):
    format: TextFormat = TextFormat()


class Reasoning(Fields):
    effort: Annotated[str, Field(max_length=MAX_EFFORT)] = ""


class ResponsesBody(Fields):
    """A request. Fields that are not listed are ignored."""

    _can_be_passed_on = model_validator(mode="before")(without_flaw)

    model: str = ""
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: ResponsesChoice = "auto"
    parallel_tool_calls: bool | None = True
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    stream: bool | None = False
    store: bool | None = True


def chat_request(
    body: ResponsesBody,
    before: Sequence[ChatMessage] = (),
    find_reply: FindReply = lambda response: None,
) -> ChatRequest:
    """Translates a body of the API. before: what `history` says of the previous response.
    find_reply: as in `Told`. ApiError (400) if it asks for what there is not."""
    items = [Item(content=body.input)] if isinstance(body.input, str) else body.input
    messages = [ChatMessage("system", body.instructions)] if body.instructions else []
    told = Told(find_reply, [*messages, *before])
    for number, item in enumerate(items):
        told.add(item, f"input.{number}")
    tools = functions(body.tools, told.unseen)
    choice, allowed = choice_of(body.tool_choice, tools)
    return ChatRequest(
        model=body.model,
        messages=tuple(told.messages),
        tools=tools,
        tool_choice=choice,
        allowed=allowed,
        parallel_calls=body.parallel_tool_calls is not False,
        schema=_schema(body.text.format),
        options=SampleOptions(
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=body.top_logprobs or None,
        ),
        effort=body.reasoning.effort,
        stream=bool(body.stream),
        unseen=tuple(told.unseen),
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
        "tool_choice": told_choice(body.tool_choice),
        "tools": told_tools(body.tools),
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None if items is None else usage(result.usage),
    }


def output_items(
    result: ChatResult, tools: Mapping[str, Origin] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Yields what the policy said: its thoughts, its text, its calls. tools: as from `origins`. Of
    a reply that was cut off,
    a call is complete, as it could be read; the text was cut, or the thoughts if nothing is behind
    them.
    """
    (choice,) = result.choices
    message = choice.message
    if message.reasoning:
        is_last = not (message.content or message.tool_calls)
        status = _end_status(choice) if is_last else "completed"
        yield reasoning_item(result, message.reasoning, status)
    if message.content or not message.tool_calls:
        yield message_item(result, choice)
    for number, call in enumerate(message.tool_calls):
        origin = tools.get(call.name, Origin(call.name))
        yield _call_item(f"{result.id}_{number}", call, origin)


def reasoning_item(result: ChatResult, text: str, status: str) -> dict[str, Any]:
    """Returns the item of the thoughts. text: "" while they are written."""
    return {
        "id": f"rs_{result.id}",
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}] if text else [],
    }


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


def _call_item(place: str, call: ToolCall, origin: Origin) -> dict[str, Any]:
    """place: of the call among all, which makes its id."""
    told = {"call_id": call.id, "name": origin.name, "status": "completed"}
    if origin.namespace:
        told["namespace"] = origin.namespace
    if origin.is_custom:
        told["input"] = custom_input(call.arguments)
        return {"id": f"ctc_{place}", "type": "custom_tool_call"} | told
    return {"id": f"fc_{place}", "type": "function_call", "arguments": call.arguments} | told


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
