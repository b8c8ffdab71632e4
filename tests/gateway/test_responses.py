"""OpenAI's responses, as the official client uses them."""

import json

import openai
import pytest
from openai.types.responses import Response

from ale_jax.gateway.api.openai_responses import ResponsesBody, output_items, response
from ale_jax.gateway.api.responses_events import Events
from ale_jax.gateway.app import make_app
from ale_jax.gateway.histories import Histories
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ApiError, ChatResult, Choice, TokenLogprob, Usage
from ale_jax.gateway.server import served
from tests.gateway.speech import read
from tests.gateway.test_app import BASH, Gateway

TOOLS = [{"type": "function", "strict": False, **BASH}]
ASKED = {"model": "m", "tools": TOOLS}
USER = [{"role": "user", "content": "task"}]


@pytest.fixture
def gateway():
    gateway = Gateway()
    with served(make_app(gateway.episodes, "policy")) as gateway.url:
        yield gateway


def respond(client, stream, **asked):
    """The response, which the client's own models must accept."""
    if not stream:
        return Response.model_validate(client.responses.create(**asked).model_dump())
    with client.responses.stream(**asked) as events:
        told = list(events)
    whole = told[-1].response
    kinds = [event.type for event in told]
    assert (kinds[0], kinds[-1]) == ("response.created", f"response.{whole.status}")
    assert [event.sequence_number for event in told] == list(range(len(told)))
    return whole


def result_of(response, output):
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("bash", {"command": "ls"})
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_everything_again_plays_a_task(gateway, stream):
    token = gateway.open()
    client, told = gateway.openai(token), [{"role": "user", "content": "task"}]
    first = respond(client, stream, **ASKED, input=told)
    assert first.output_text == "I look."
    assert {item.type for item in first.output} == {"message", "reasoning", "function_call"}
    told += [item.model_dump(exclude_none=True) for item in first.output]
    told.append(result_of(first, "a.txt"))
    second = respond(client, stream, **ASKED, input=told)
    assert second.output_text == "There is a.txt."
    assert second.usage.input_tokens_details.cached_tokens > 0
    (branch,) = gateway.episodes.end(token, "all")
    assert [call.reply.content for call in branch.calls] == ["I look.", "There is a.txt."]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_goes_on_from_the_last_response(gateway, stream):
    token = gateway.open()
    client = gateway.openai(token)
    asked = {**ASKED, "instructions": "Work."}
    first = respond(client, stream, **asked, input="task")
    more = {"previous_response_id": first.id, "input": [result_of(first, "a.txt")]}
    second = respond(client, stream, **asked, **more)
    assert second.output_text == "There is a.txt."
    # With other instructions it is another conversation, whose reply is context.
    respond(client, stream, **ASKED, instructions="Be quick.", **more)
    whole, other = gateway.episodes.end(token, "all")
    assert [len(whole.calls), len(other.calls)] == [2, 1]
    assert [message.role for message in other.calls[0].messages] == [
        *("system", "user", "assistant", "tool")
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("instructions", [{}, {"instructions": "Work."}])
def test_only_instructions_do_not_count_in_later_turns(gateway, role, instructions):
    token = gateway.open()
    client, told = gateway.openai(token), [{"role": role, "content": "Be terse."}]
    first = respond(client, False, **ASKED, **instructions, input=[*told, *USER])
    second = respond(client, False, **ASKED, input="more", previous_response_id=first.id)
    respond(client, False, **ASKED, input="even more", previous_response_id=second.id)
    calls = [call for branch in gateway.episodes.end(token, "all") for call in branch.calls]
    (last,) = [call for call in calls if call.messages[-1].content == "even more"]
    shown = [each for each in read(last.context_ids()) if each[0] != "assistant"]
    assert shown == [
        ("system", "Be terse."),
        *[("user", text) for text in ("task", "more", "even more")],
    ]


def test_only_the_episodes_own_responses_go_on(gateway):
    first = gateway.openai(gateway.open()).responses.create(**ASKED, input="task")
    stranger = gateway.openai(gateway.open())
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        stranger.responses.create(**ASKED, input="x", previous_response_id=first.id)
    forgotten = stranger.responses.create(**ASKED, input="task", store=False)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.create(**ASKED, input="x", previous_response_id=forgotten.id)


@pytest.mark.parametrize("sent", ["", "Hel"])
def test_log_probabilities_are_told_with_the_text(sent):
    tokens = (TokenLogprob("Hel", -0.5, (TokenLogprob("A", -0.1),)), TokenLogprob("lo", -1.0))
    choice = Choice(ChatMessage("assistant", "Hello"), "stop", tokens)
    result = ChatResult("x", 0, "m", (choice,), Usage(1, 2))
    body = ResponsesBody(input="task", top_logprobs=1)
    whole = Response.model_validate(response(result, body, list(output_items(result))))
    assert logprobs_of(whole) == [("Hel", -0.5, [("A", -0.1)]), ("lo", -1.0, [])]
    events = Events(body)
    told = [*(events.content(result, 0, sent) if sent else ()), *events.end(result, {0: sent})]
    told = [json.loads(each.partition("data: ")[2]) for each in told]
    last = Response.model_validate(told[-1]["response"])
    assert logprobs_of(last) == logprobs_of(whole)
    done = [each["logprobs"] for each in told if each["type"] == "response.output_text.done"]
    assert done == [told[-1]["response"]["output"][0]["content"][0]["logprobs"]] * bool(sent)


def logprobs_of(response):
    (part,) = response.output[0].content
    return [
        (each.token, each.logprob, [(other.token, other.logprob) for other in each.top_logprobs])
        for each in part.logprobs
    ]


def test_histories_are_bounded():
    episode = object()
    for bounds in ({"max_kept": 2}, {"max_chars": 60}):
        histories = Histories(**bounds)
        for number in range(3):
            histories.keep(str(number), episode, [ChatMessage("user", str(number) * 10)])
        assert histories.after("1", episode) and histories.after("2", episode)
        with pytest.raises(ApiError):
            histories.after("0", episode)


def test_a_history_that_is_kept_again_takes_no_more_room():
    episode, histories = object(), Histories(max_chars=60)
    histories.keep("0", episode, [ChatMessage("user", "0" * 10)])
    for _ in range(20):
        histories.keep("1", episode, [ChatMessage("user", "1" * 10)])
    assert histories.after("0", episode) and histories.after("1", episode)


def test_a_response_that_was_cut_off_says_so(gateway):
    client = gateway.openai(gateway.open())
    told = [{"type": "function_call_output", "call_id": "x", "output": "much"}]
    for stream in (False, True):
        cut = respond(client, stream, model="m", input=told, max_output_tokens=5)
        assert (cut.status, cut.output_text) == ("incomplete", "There")
        assert cut.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("tools", {"tools": [{"type": "web_search"}], "input": "x"}),
        ("input.0.type", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input.0", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input.0.call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "no"}, "input": "x"}),
        ("messages", {"input": [{"role": "assistant", "content": "x"}]}),
        ("input", {"input": 7}),
    ],
)
def test_what_there_is_not_is_refused_by_name(gateway, field, asked):
    refused = gateway.post("/responses", {"model": "m"} | asked, gateway.open())
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith(field)
