"""OpenAI's responses, as the official client uses them."""

import json
from itertools import groupby

import openai
import pytest
from openai.lib.streaming.responses import ResponseStreamState
from openai.types.responses import Response

from ale_jax.gateway.api.openai_responses import ResponsesBody, output_items, response
from ale_jax.gateway.api.responses_events import ResponsesEvents
from ale_jax.gateway.app import make_app
from ale_jax.gateway.formats.families import format_named
from ale_jax.gateway.kept_calls import Histories
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ApiError, ChatResult, Choice, TokenLogprob, Usage
from ale_jax.gateway.server import served
from tests.gateway.formats.test_formats import marked
from tests.gateway.speech import read
from tests.gateway.test_app import BASH, CALL, Gateway

TOOLS = [{"type": "function", "strict": False, **BASH}]
ASKED = {"model": "m", "tools": TOOLS}
USER = [{"role": "user", "content": "task"}]


@pytest.fixture
def gateway():
    gateway = Gateway()
    with served(make_app(gateway.episodes, "policy")) as gateway.url:
        yield gateway


def respond(client, stream, **asked):
    """The response, which the client's own models must accept, and so each event of it."""
    if not stream:
        return Response.model_validate(client.responses.create(**asked).to_dict())
    events = list(client.responses.create(**asked, stream=True))
    told = [type(event).model_validate(event.to_dict()) for event in events]
    whole = told[-1].response
    kinds = [event.type for event in told]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    assert [event.sequence_number for event in told] == list(range(len(told)))
    of_items = groupby(told[2:-1], key=lambda event: event.output_index)
    items = [(index, built(list(of_item))) for index, of_item in of_items]
    assert items == list(enumerate(item.to_dict() for item in whole.output))
    shown = [(n, item) for n, item in enumerate(whole.output) if item.type in SNAPSHOTS]
    texts = [(n, text_of(item)) for n, item in shown]
    assert snapshots(events) == {index: text for index, text in texts if text}
    return whole


def snapshots(events):
    """The text or the arguments of each item, as the client's own code adds them up."""
    state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    seen = [each for event in events for each in state.handle_event(event)]
    return {each.output_index: each.snapshot for each in seen if hasattr(each, "snapshot")}


SNAPSHOTS = ("message", "function_call")  # of these the client's code has one
PART_KINDS = ("content_part.added", "{}.delta", "{}.done", "content_part.done")
KINDS = {
    "message": [kind.format("output_text") for kind in PART_KINDS],
    "reasoning": [kind.format("reasoning_text") for kind in PART_KINDS],
    "function_call": ["function_call_arguments.delta", "function_call_arguments.done"],
    "custom_tool_call": ["custom_tool_call_input.delta", "custom_tool_call_input.done"],
}
WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}


def built(events):
    """The item that a client gets who begins with what was added, and adds what comes after it."""
    (added, *between, done), item = events, events[0].item.to_dict()
    assert (added.type, done.type) == ("response.output_item.added", "response.output_item.done")
    assert item.pop("status") == "in_progress"
    kinds = [event.type.removeprefix("response.") for event in between]
    deltas = "".join(event.delta for event in between if event.type.endswith(".delta"))
    assert [kind for kind, _ in groupby(kinds)] == [
        kind for kind in KINDS[item["type"]] if deltas or not kind.endswith(".delta")
    ]
    assert {event.item_id for event in between} == {item["id"]}
    if written := WRITTEN.get(item["type"]):
        assert getattr(between[-1], written) == item[written] + deltas
        item[written] += deltas
    else:
        assert {event.content_index for event in between} == {0}
        part = between[0].part.to_dict()
        part["text"] += deltas
        assert between[-2].text == part["text"]
        item["content"].append(part)
    assert done.item.to_dict() == item | {"status": done.item.status}
    return done.item.to_dict()


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool", "call"),
    [
        (
            {"type": "namespace", "name": "agents", "description": "", "tools": TOOLS},
            "agents__bash",
        ),
        ({"type": "custom", "name": "bash"}, "bash"),
    ],
)
def test_a_call_is_told_as_the_tool_that_it_stands_for(gateway, monkeypatch, tool, call, stream):
    """As Codex offers its sub-agents and its patches, beside a search that no policy can make."""
    argument = '{"command": "ls"}' if "__" in call else '{"input": "ls"}'
    written = f'<tool_call>{{"name": "{call}", "arguments": {argument}}}</tool_call>'
    answers = iter([written, "Done."])
    monkeypatch.setattr(gateway.policy, "say", lambda messages: next(answers))
    token = gateway.open()
    client, told = gateway.openai(token), [{"role": "developer", "content": "Work."}, *USER]
    asked = {"model": "m", "tools": [tool, {"type": "web_search"}]}
    first = respond(client, stream, **asked, input=told)
    assert [each.type for each in first.tools] == [tool["type"]]
    (item,) = first.output
    assert item.name == "bash"
    if item.type == "function_call":
        assert (item.namespace, item.arguments) == ("agents", argument)
    else:
        assert (item.type, item.input) == ("custom_tool_call", "ls")
    # Half of it by its id, as clients do that let a server keep the conversation.
    again = [{"type": "item_reference", "id": item.id}] if stream else [item.to_dict()]
    output = {"type": f"{item.type}_output", "call_id": item.call_id, "output": "a.txt"}
    assert respond(client, stream, **asked, input=[*told, *again, output]).output_text == "Done."
    assert gateway.episodes.find(token).unseen == ("tool web_search",)
    (branch,) = gateway.episodes.end(token, "all")
    assert len(branch.calls) == 2


def test_only_the_episodes_own_items_are_told_by_their_ids(gateway):
    first = gateway.openai(gateway.open()).responses.create(**ASKED, input="task")
    told = [{"type": "item_reference", "id": first.output[-1].id}, *USER]
    with pytest.raises(openai.NotFoundError, match="there is no item"):
        gateway.openai(gateway.open()).responses.create(**ASKED, input=told)


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
    part = TokenLogprob("\ufffd", -2.0)  # of a character, whose bytes are not known
    top = (TokenLogprob("A", -0.1), part)
    tokens = (TokenLogprob("Hel", -0.5, top), TokenLogprob("lö", -1.0), part)
    choice = Choice(ChatMessage("assistant", "Hellö"), "stop", tokens)
    result = ChatResult("x", 0, "m", (choice,), Usage(1, 2))
    body = ResponsesBody(input="task", top_logprobs=1)
    whole = Response.model_validate(response(result, body, list(output_items(result))))
    assert logprobs_of(whole) == [
        ("Hel", b"Hel", -0.5, [("A", b"A", -0.1), ("\ufffd", b"", -2.0)]),
        ("lö", b"l\xc3\xb6", -1.0, []),
        ("\ufffd", b"", -2.0, []),
    ]
    events = ResponsesEvents(body)
    told = [*(events.content(result, 0, sent) if sent else ()), *events.end(result)]
    told = [json.loads(each.partition("data: ")[2]) for each in told]
    last = Response.model_validate(told[-1]["response"])
    assert logprobs_of(last) == logprobs_of(whole)
    done = [each["logprobs"] for each in told if each["type"] == "response.output_text.done"]
    assert done == [told[-1]["response"]["output"][0]["content"][0]["logprobs"]]


def logprobs_of(response):
    (part,) = response.output[0].content
    named = lambda each: (each.token, bytes(each.bytes), each.logprob)  # noqa: E731
    return [(*named(each), list(map(named, each.top_logprobs))) for each in part.logprobs]


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


LS, THINKS = '{"command": "ls"}', "<think>so</think>"
ANALYSIS, FINAL = (
    marked(f"«<|channel|>»{channel}«<|message|>»{text}«<|end|>»")
    for channel, text in (("analysis", "so"), ("final", "Hello."))
)
MESSAGE, THOUGHTS = ("message", "Hello.", "completed"), ("reasoning", "so", "completed")
CALLED, CUT = ("function_call", LS, "completed"), ("message", "Hello.", "incomplete")
BARE_CALL = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>")

# The format, what the policy writes, how many letters of that it may, and what the items say.
REPLIES = {
    "text": ("hermes", "Hello.", None, [MESSAGE]),
    "a call": ("hermes", CALL, None, [CALLED]),
    "text and calls": ("hermes", f"Hello.{CALL}{CALL}", None, [MESSAGE, CALLED, CALLED]),
    "thoughts and a call": ("hermes", f"{THINKS}{CALL}", None, [THOUGHTS, CALLED]),
    "thoughts and text": ("hermes", f"{THINKS}Hello.", None, [THOUGHTS, MESSAGE]),
    "thoughts": ("hermes", THINKS, None, [THOUGHTS, ("message", "", "completed")]),
    "text held back by harmony": ("harmony", FINAL, None, [MESSAGE]),
    "all held back by harmony": ("harmony", f"{ANALYSIS}{FINAL}", None, [THOUGHTS, MESSAGE]),
    "JSON held back by llama3": ("llama3", LS, None, [("message", LS, "completed")]),
    "JSON held back by plain_json": ("plain_json", LS, None, [("message", LS, "completed")]),
    "a call in plain_json": ("plain_json", BARE_CALL, None, [CALLED]),
    "text that is cut": ("hermes", "Hello. There", 6, [CUT]),
    "JSON that is cut": ("plain_json", LS, 5, [("message", LS[:5], "incomplete")]),
    "text that is cut after thoughts": ("hermes", f"{THINKS}Hello.!", 23, [THOUGHTS, CUT]),
    "thoughts that are cut": (
        *("hermes", "<think>so long", 9),
        [("reasoning", "so", "incomplete"), ("message", "", "incomplete")],
    ),
    "a call that is complete": ("hermes", f"{CALL} and", len(CALL), [CALLED]),
    "a call that is cut after another": (
        *("hermes", f"Hello.{CALL}{CALL}", len(CALL) + 12),
        [("message", "Hello.<tool_", "incomplete"), CALLED],
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", REPLIES)
def test_a_response_is_what_was_said_whether_or_not_it_is_streamed(gateway, case):
    name, text, most, items = REPLIES[case]
    gateway.policy.say = lambda messages: text
    client = gateway.openai(gateway.open(format_named(name)))
    asked = {**ASKED, "input": "task"} | ({"max_output_tokens": most} if most else {})
    for stream in (False, True):
        whole = respond(client, stream, **asked)
        assert [(each.type, text_of(each), each.status) for each in whole.output] == items
        cut = whole.incomplete_details and whole.incomplete_details.reason
        ended = ("incomplete", "max_output_tokens") if most else ("completed", None)
        assert (whole.status, cut) == ended


def text_of(item):
    return item.arguments if item.type == "function_call" else item.content[0].text


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object"},
        {"type": "json_schema", "name": "look", "schema": BASH["parameters"], "strict": True},
    ],
)
def test_a_response_says_which_format_its_text_has(gateway, wanted):
    gateway.policy.say = lambda messages: LS
    client = gateway.openai(gateway.open(format_named("plain_json")))
    for stream in (False, True):
        whole = respond(client, stream, model="m", input="task", text={"format": wanted})
        assert whole.text.format.to_dict(exclude_none=True) == wanted
        assert whole.output_text == LS


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("tools.0.name", {"tools": [{"type": "function"}], "input": "x"}),
        ("input.0.type", {"input": [{"type": "dream", "id": "x"}]}),
        ("input.0", {"input": [{"role": "user", "content": [{"type": "dream"}]}]}),
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
