"""Requests of both APIs are understood as the same, and what is answered is what their clients
expect."""

import dataclasses
import json

import anthropic.types
import openai.types.chat
import pytest
from pydantic import ValidationError

from ale_jax.gateway.api import anthropic_messages, openai_chat, openai_completions
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import (
    REQUIRED,
    ApiError,
    ChatRequest,
    ChatResult,
    Choice,
    SampleOptions,
    TokenLogprob,
    Usage,
)

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
LS = ToolCall("bash", '{"command": "ls"}', "call_1")
MESSAGES = (
    ChatMessage("system", "Work."),
    ChatMessage("user", "Begin."),
    ChatMessage("assistant", "I look.", "hm", (LS,)),
    ChatMessage("tool", "a\nb", answers="call_1"),
    ChatMessage("user", "Go on."),
)
TOOL = {"name": "bash", "description": "Runs.", "parameters": PARAMETERS}
WANTED = ChatRequest(
    model="policy",
    messages=MESSAGES,
    tools=({"type": "function", "function": TOOL},),
    tool_choice=REQUIRED,
    parallel_calls=False,
    options=SampleOptions(max_tokens=50, temperature=0.5, top_p=0.9, top_k=8, stop=("END",)),
)
OPENAI = {
    "model": "policy",
    "messages": [
        {"role": "developer", "content": "Work."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "gin."}],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a\nb"},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_completion_tokens": 50,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 8,
    "stop": "END",
    "store": True,
    "metadata": {"of": "another service"},
}
ANTHROPIC = {
    "model": "policy",
    "system": [{"type": "text", "text": "Work.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Begin."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "tools": [{"name": "bash", "description": "Runs.", "input_schema": PARAMETERS}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 50,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 8,
    "stop_sequences": ["END"],
}


def of_openai(**changes):
    return openai_chat.chat_request(openai_chat.ChatBody(**OPENAI | changes))


def of_anthropic(**changes):
    return anthropic_messages.chat_request(anthropic_messages.MessagesBody(**ANTHROPIC | changes))


def test_both_apis_ask_for_the_same():
    assert of_openai() == of_anthropic() == WANTED


def test_the_tokens_of_a_request_are_counted_without_its_options():
    body = {name: ANTHROPIC[name] for name in ("model", "system", "messages", "tools")}
    counted = anthropic_messages.chat_request(anthropic_messages.CountBody(**body))
    assert (counted.messages, counted.tools) == (WANTED.messages, WANTED.tools)


def of_completions(**changes):
    body = openai_completions.CompletionsBody(prompt="Begin", **changes)
    return openai_completions.completion_request(body)


@pytest.mark.parametrize("ask", [of_openai, of_completions])
def test_lower_priorities_come_first_as_in_vllm(ask):
    assert [ask(priority=each).options.priority for each in (-3, 0, 2)] == [3, 0, -2]
    assert ask().options.priority == 0
    with pytest.raises(ValidationError, match="priority"):
        ask(priority=2**63)


def test_more_options_of_chat_completions():
    asked = of_openai(
        stop=["a", ""],
        n=3,
        seed=7,
        logprobs=True,
        top_logprobs=2,
        logit_bias={"17": -100},
        frequency_penalty=0.5,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}},
        stream=True,
        stream_options={"include_usage": True},
        tool_choice={"type": "function", "function": {"name": "bash"}},
    )
    options = asked.options
    assert (options.stop, options.n, options.seed, options.top_logprobs) == (("a",), 3, 7, 2)
    assert (options.logit_bias, options.frequency_penalty) == ({17: -100.0}, 0.5)
    assert asked.schema == PARAMETERS and asked.stream and asked.with_usage
    assert asked.tool_choice == "bash"
    assert of_openai(response_format={"type": "json_object"}).schema == {"type": "object"}
    assert of_openai().options.top_logprobs is None


NULLS = ("n", "stream", "stop", "seed", "logit_bias", "frequency_penalty", "presence_penalty")


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (of_openai, (*NULLS, "logprobs", "top_logprobs")),
        (of_completions, (*NULLS, "logprobs", "max_tokens", "echo", "best_of")),
    ],
)
def test_a_field_that_is_null_is_left_out(ask, names):
    nulls = ask(**dict.fromkeys(names))
    assert nulls == dataclasses.replace(ask(), options=nulls.options)
    assert nulls.options == dataclasses.replace(ask().options, stop=())


USER = [{"role": "user", "content": "Begin."}]


@pytest.mark.parametrize(
    ("ask", "changes", "message", "field"),
    [
        (
            of_openai,
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "'x'",
            "tool_",
        ),
        (of_openai, {"messages": [{"role": "user"}]}, "missing", "messages.0.content"),
        (of_openai, {"messages": [{"role": "tool", "content": ""}]}, "tool_call_id", "messages.0"),
        (of_openai, {"response_format": {"type": "json_schema"}}, "missing", "response_format"),
        (of_anthropic, {"tool_choice": {"type": "tool", "name": "x"}}, "'x'", "tool_choice"),
    ],
)
def test_what_there_is_not_is_refused(ask, changes, message, field):
    with pytest.raises(ApiError, match=message) as refused:
        ask(**changes)
    assert refused.value.status == 400 and refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("ask", "changes"),
    [
        (of_openai, {"messages": []}),
        (of_openai, {"n": 0}),
        (of_openai, {"temperature": float("nan")}),
        (of_openai, {"messages": [{"role": "robot", "content": ""}]}),
        (of_anthropic, {"max_tokens": 0}),
        (of_openai, {"stop": "x" * 257}),
        (of_openai, {"stop": ["x", "x" * 257]}),
        (of_openai, {"stop": ["x"] * 17}),
        (of_completions, {"stop": "x" * 257}),
        (of_anthropic, {"stop_sequences": ["x"] * 17}),
        (of_anthropic, {"stop_sequences": ["x" * 257]}),
    ],
)
def test_values_out_of_range_are_refused(ask, changes):
    with pytest.raises(ValidationError):
        ask(**changes)


SAID = ChatMessage("assistant", "I look.", "hm", (LS,))


def result(message, finish, **more):
    choices = (Choice(message, finish, **more),)
    return ChatResult("abc", 1_700_000_000, "policy", choices, Usage(10, 4, cached=6))


def test_a_completion_is_what_openais_client_expects():
    body = openai_chat.completion(result(SAID, "tool_calls"))
    found = openai.types.chat.ChatCompletion.model_validate_json(json.dumps(body), strict=True)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert choice.message.tool_calls[0].function.arguments == LS.arguments
    assert (found.usage.total_tokens, found.usage.prompt_tokens_details.cached_tokens) == (14, 6)


def test_the_bytes_of_a_part_of_a_character_are_its_own_or_none():
    part, known = TokenLogprob("\ufffd", -1.0), TokenLogprob("\ufffd", -1.0, data=b"\xf0")
    tokens = (TokenLogprob("ä", -0.5, (part, known)), part)
    body = openai_chat.completion(result(SAID, "stop", logprobs=tokens))
    found = openai.types.chat.ChatCompletion.model_validate_json(json.dumps(body), strict=True)
    first, second = found.choices[0].logprobs.content
    assert (first.bytes, second.bytes) == ([0xC3, 0xA4], None)
    assert [each.bytes for each in first.top_logprobs] == [None, [0xF0]]


def streamed(events, whole, *contents):
    """All that is sent, if the content comes in these parts and the rest at the end, and the client
    hears nothing for a while before each of them."""
    head, (choice,) = dataclasses.replace(whole, choices=()), whole.choices
    told = list(events.start(head))
    if thoughts := choice.message.reasoning:
        told += [*events.silence(head), *events.thoughts(head, 0, thoughts)]
    for more in (*contents, choice.message.content.removeprefix("".join(contents))):
        told += [*events.silence(head), *(events.content(head, 0, more) if more else ())]
    return told + list(events.end(whole))


@pytest.mark.parametrize("contents", [(), ("I ", "look"), ("I look.",)])
def test_a_stream_is_what_openais_client_expects(contents):
    whole = result(SAID, "tool_calls")
    *events, done = streamed(openai_chat.ChatEvents(with_usage=True), whole, *contents)
    assert done == "data: [DONE]\n\n"
    kind = openai.types.chat.ChatCompletionChunk
    chunks = [kind.model_validate_json(e.removeprefix("data: "), strict=True) for e in events]
    *chunks, usage = chunks
    assert usage.usage.total_tokens == 14
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert deltas[-1].tool_calls[0].function.arguments == LS.arguments
    assert [c.choices[0].finish_reason for c in chunks][-1] == "tool_calls"


@pytest.mark.parametrize(
    ("finish", "reason"), [("tool_calls", "tool_use"), ("length", "max_tokens")]
)
def test_a_message_is_what_anthropics_client_expects(finish, reason):
    body = anthropic_messages.message(result(SAID, finish))
    found = anthropic.types.Message.model_validate_json(json.dumps(body), strict=True)
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use"]
    assert (found.content[2].input, found.stop_reason) == ({"command": "ls"}, reason)
    assert (found.usage.input_tokens, found.usage.cache_read_input_tokens) == (4, 6)


@pytest.mark.parametrize(
    ("finish", "stop", "told"),
    [("stop", "END", ("stop_sequence", "END")), ("stop", "", ("end_turn", None))],
)
def test_anthropics_client_is_told_which_text_ended_the_reply(finish, stop, told):
    whole = result(ChatMessage("assistant", "I look."), finish, stop=stop)
    found = anthropic.types.Message.model_validate(anthropic_messages.message(whole))
    assert (found.stop_reason, found.stop_sequence) == told
    (last,) = (
        e for e in streamed(anthropic_messages.MessagesEvents(), whole) if "message_delta" in e
    )
    kind = anthropic.types.RawMessageDeltaEvent
    delta = kind.model_validate_json(last.partition("data: ")[2]).delta
    assert (delta.stop_reason, delta.stop_sequence) == told


EVENTS = {
    "message_start": anthropic.types.RawMessageStartEvent,
    "content_block_start": anthropic.types.RawContentBlockStartEvent,
    "content_block_delta": anthropic.types.RawContentBlockDeltaEvent,
    "content_block_stop": anthropic.types.RawContentBlockStopEvent,
    "message_delta": anthropic.types.RawMessageDeltaEvent,
    "message_stop": anthropic.types.RawMessageStopEvent,
}


@pytest.mark.parametrize("contents", [(), ("I ", "look"), ("I look.",)])
def test_a_stream_is_what_anthropics_client_expects(contents):
    whole, said, started = result(SAID, "tool_calls"), {}, []
    for event in streamed(anthropic_messages.MessagesEvents(), whole, *contents):
        name, data = (line.partition(": ")[2] for line in event.split("\n")[:2])
        if name == "ping":
            assert not started, "in a block, its type's delta is the sign of life"
            continue
        EVENTS[name].model_validate_json(data)
        found = json.loads(data)
        if name == "content_block_start":
            started.append(found["content_block"]["type"])
            assert found["index"] == len(started) - 1
        if name == "content_block_delta":
            part = "".join(v for k, v in found["delta"].items() if k != "type")
            said[started[found["index"]]] = said.get(started[found["index"]], "") + part
    assert said == {"text": "I look.", "thinking": "hm", "tool_use": LS.arguments}


def test_errors_have_each_apis_own_shape():
    refused = ApiError(429, "wait", retry_after=3)
    assert openai_chat.error(refused)["error"]["message"] == "wait"
    assert anthropic_messages.error(refused)["error"]["type"] == "rate_limit_error"
    broken = ApiError(500, "broken")
    assert openai_chat.error(broken)["error"]["type"] == "server_error"
    assert anthropic_messages.error(broken)["error"]["type"] == "api_error"
