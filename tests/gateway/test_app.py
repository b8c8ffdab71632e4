"""The gateway over HTTP, as the official clients and careless ones use it."""

import asyncio
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import numpy as np
import openai
import pytest
from starlette.requests import ClientDisconnect

from ale_jax.gateway.api import openai_chat
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import MOST_CALLS, Episodes
from ale_jax.gateway.formats.json_calls import Hermes
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from ale_jax.gateway.server import served
from ale_jax.gateway.streaming import streamed
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.speech import read, render

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
BASH = {
    "name": "bash",
    "description": "Runs.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": BASH}]
HERMES = Hermes()


def answer(messages):
    """A policy that looks once, and then says what it saw."""
    role, text = messages[-1]
    if text == "wait":
        return None
    return f"<think>so</think>I look.{CALL}" if role == "user" else f"There is {text}."


class Gateway:
    def __init__(self, most_calls=MOST_CALLS):
        self.episodes, self.policy = Episodes(most_calls), FakePolicy(answer)
        self.url = None

    def open(self, format=HERMES):
        keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
        tree = TokenTree(render)
        language = Language(format, lambda ids: read([4, *ids])[0][1])
        return self.episodes.open(GatewayEpisode(tree, self.policy, language, keys))

    def openai(self, token):
        return openai.OpenAI(base_url=self.url, api_key=token, max_retries=0)

    def anthropic(self, token):
        url = self.url.removesuffix("/v1")
        return anthropic.Anthropic(base_url=url, api_key=token, max_retries=0)

    def post(self, path, body, token, **options):
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, **options)


@contextlib.contextmanager
def gateway_with(most_calls=MOST_CALLS):
    gateway = Gateway(most_calls)
    with served(make_app(gateway.episodes, "policy")) as gateway.url:
        yield gateway


@pytest.fixture
def gateway():
    with gateway_with() as gateway:
        yield gateway


def play_with_openai(client, stream):
    """A task of two turns; returns the messages."""
    messages = [{"role": "user", "content": "task"}]
    for result in ("a.txt", None):
        asked = {"model": "m", "messages": messages, "tools": TOOLS}
        if stream:
            message = joined(client.chat.completions.create(**asked, stream=True))
        else:
            (choice,) = client.chat.completions.create(**asked).choices
            message = choice.message.model_dump(exclude_none=True)
        messages.append(message)
        if result:
            (call,) = message["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"command": "ls"}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return messages


def joined(chunks):
    message, finish = {"role": "assistant", "content": "", "tool_calls": []}, None
    ids = set()
    for chunk in chunks:
        ids.add(chunk.id)
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        message["tool_calls"] += [c.model_dump() for c in delta.tool_calls or []]
        finish = chunk.choices[0].finish_reason or finish
    assert len(ids) == 1, "it is one completion"
    assert finish == ("tool_calls" if message["tool_calls"] else "stop")
    return message


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_plays_a_task_and_every_token_is_delivered(gateway, stream):
    token = gateway.open()
    messages = play_with_openai(gateway.openai(token), stream)
    assert messages[1]["content"] == "I look." and messages[-1]["content"] == "There is a.txt."
    (branch,) = gateway.episodes.end(token, "all")
    assert [call.reply.content for call in branch.calls] == ["I look.", "There is a.txt."]
    assert branch.calls[0].reply.reasoning == "so"
    # The second call read what was new in the conversation that the engine had kept.
    (first, _), (second, new_ids) = gateway.policy.asked
    assert first == second and read(new_ids)[0] == ("tool", "a.txt")
    assert gateway.policy.ended == [first]


def test_anthropics_client_plays_the_same_task(gateway):
    token = gateway.open()
    client = gateway.anthropic(token)
    tool = {"name": "bash", "description": "Runs.", "input_schema": BASH["parameters"]}
    asked = {"model": "m", "max_tokens": 200, "tools": [tool]}
    messages = [{"role": "user", "content": "task"}]
    first = client.messages.create(**asked, messages=messages)
    thinking, text, use = first.content
    assert (thinking.thinking, text.text, use.input) == ("so", "I look.", {"command": "ls"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "a.txt"}
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    counted = client.messages.count_tokens(model="m", messages=messages, tools=[tool])
    with client.messages.stream(**asked, messages=messages) as stream:
        assert "".join(stream.text_stream) == "There is a.txt."
        last = stream.get_final_message()
    assert last.usage.input_tokens + last.usage.cache_read_input_tokens == counted.input_tokens
    assert last.usage.cache_read_input_tokens > 0
    assert len(gateway.episodes.end(token, "all")) == 1


def test_parallel_calls_of_sub_agents_are_branches_of_one_episode(gateway):
    token = gateway.open()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: play_with_openai(gateway.openai(token), False), range(8)))
    branches = gateway.episodes.end(token, "all")
    delivered = [call for b in branches for call in b.calls[b.num_shared :]]
    assert len(delivered) == len(set(map(id, delivered))) == 16


def test_several_replies_to_one_request(gateway):
    token = gateway.open()
    messages = [{"role": "user", "content": "task"}]
    found = gateway.openai(token).chat.completions.create(model="m", messages=messages, n=3)
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert len({call for call, _ in gateway.policy.asked}) == 3
    assert len(gateway.episodes.end(token, "all")) == 3


def test_a_reply_that_was_cut_off_says_so(gateway):
    client = gateway.openai(gateway.open())
    messages = [{"role": "tool", "tool_call_id": "x", "content": "much"}]
    (choice,) = client.chat.completions.create(model="m", messages=messages, max_tokens=5).choices
    assert (choice.finish_reason, choice.message.content) == ("length", "There")


def test_without_tools_to_choose_a_call_is_text(gateway):
    client = gateway.openai(gateway.open())
    asked = {"model": "m", "messages": [{"role": "user", "content": "task"}], "tools": TOOLS}
    (choice,) = client.chat.completions.create(**asked, tool_choice="none").choices
    assert choice.message.tool_calls is None and CALL in choice.message.content


def test_tokens_decide_who_may_call(gateway):
    token = gateway.open()
    body = {"model": "m", "messages": [{"role": "user", "content": "task"}]}
    for wrong in ("x", token[:-1]):
        refused = gateway.post("/chat/completions", body, wrong)
        assert refused.status_code == 401 and "token" in refused.json()["error"]["message"]
    assert httpx.get(f"{gateway.url}/models").status_code == 401
    models = gateway.openai(token).models.list().data
    assert [model.id for model in models] == ["policy"]
    gateway.episodes.end(token, "all")
    with pytest.raises(openai.APIStatusError, match="has ended") as ended:
        gateway.openai(token).chat.completions.create(**body)
    assert ended.value.status_code == 410


def test_calls_beyond_the_limit_are_told_to_come_again():
    with gateway_with(most_calls=1) as gateway, ThreadPoolExecutor(1) as pool:
        token, other = gateway.open(), gateway.open()
        asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "wait"}]}
        first = pool.submit(gateway.post, "/chat/completions", asked, token, timeout=60)
        until(lambda: gateway.policy.asked)
        with pytest.raises(anthropic.RateLimitError) as refused:
            gateway.anthropic(token).messages.create(**asked)
        assert refused.value.response.headers["Retry-After"] == "1"
        assert refused.value.body["error"]["type"] == "rate_limit_error"
        gateway.episodes.end(token, "all")
        assert first.result().status_code == 410
        play_with_openai(gateway.openai(other), False)


def test_the_end_of_an_episode_ends_calls_that_wait(gateway):
    token = gateway.open()
    body = {"model": "m", "messages": [{"role": "user", "content": "wait"}]}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.post, "/chat/completions", body, token, timeout=60)
        until(lambda: gateway.policy.asked)
        gateway.episodes.end(token, "all")
        assert waiting.result().status_code == 410


def test_a_client_that_goes_away_is_not_waited_for(gateway):
    body = {"model": "m", "messages": [{"role": "user", "content": "wait"}]}
    with contextlib.suppress(httpx.TimeoutException):
        gateway.post("/chat/completions", body, gateway.open(), timeout=0.5)
    until(lambda: gateway.policy.ended)
    assert gateway.policy.ended == [0]


def test_a_reply_is_sent_while_it_is_written_and_given_up_when_nobody_listens(gateway):
    client = gateway.openai(gateway.open())
    messages = [{"role": "user", "content": "wait"}]
    stream = client.chat.completions.create(model="m", messages=messages, stream=True)
    assert next(iter(stream)).choices[0].delta.content == "I wait"
    assert not gateway.policy.ended
    stream.close()
    until(lambda: gateway.policy.ended)


def test_a_stream_that_nobody_has_begun_to_read_is_given_up(gateway):
    """The client leaves before the head of the response is sent."""
    token = gateway.open()
    episode = gateway.episodes.find(token)
    asked = ChatRequest("m", (ChatMessage("user", "wait"),), stream=True)

    async def leave():
        response = await streamed(
            episode, asked, "m", openai_chat.ChatEvents(with_usage=False), print
        )

        async def send(message):
            raise OSError("the client has gone")

        with pytest.raises((OSError, ClientDisconnect, BaseExceptionGroup)):
            await response({"type": "http", "asgi": {"spec_version": "2.4"}}, None, send)

    asyncio.run(leave())
    assert gateway.policy.ended == [0] and episode.tree.counts.lost == 1


def test_what_goes_wrong_in_a_stream_is_said_in_it(gateway):
    token = gateway.open()
    messages = [{"role": "user", "content": "wait"}]
    asked = {"model": "m", "messages": messages, "max_tokens": 50}
    with gateway.anthropic(token).messages.create(**asked, stream=True) as stream:
        kinds = [next(stream).type for _ in range(3)]
        assert kinds == ["message_start", "content_block_start", "content_block_delta"]
        gateway.episodes.end(token, "all")
        with pytest.raises(anthropic.APIStatusError, match="has ended"):
            list(stream)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 0}, "n"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": 7}, "stop"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ],
)
def test_a_request_that_is_wrong_says_where(gateway, body, field):
    refused = gateway.post("/chat/completions", body, gateway.open())
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"messages": [{"role": "user"', b"\xff", b"[" * 9999]
)
def test_what_is_no_json_is_refused(gateway, content):
    for path in ("/chat/completions", "/messages"):
        headers = {"Authorization": f"Bearer {gateway.open()}", "Content-Type": "application/json"}
        refused = httpx.post(gateway.url + path, content=content, headers=headers)
        assert refused.status_code == 400 and "error" in refused.json()


def offering(path, value):
    """A request whose tool has a parameter of any kind."""
    schema, user = {"x": value}, [{"role": "user", "content": "task"}]
    match path:
        case "/chat/completions":
            tools = [{"function": {"name": "bash", "parameters": schema}}]
            return {"messages": user, "tools": tools}
        case "/responses":
            tools = [{"type": "function", "name": "bash", "parameters": schema}]
            return {"input": "task", "tools": tools}
    tools = [{"name": "bash", "input_schema": schema}]
    return {"messages": user, "max_tokens": 50, "tools": tools}


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        (float("nan"), "finite"),
        (float("-inf"), "finite"),
        (json.loads("[" * 300 + "]" * 300), "nested"),
        ("👩", None),
        (json.loads("[" * 60 + "]" * 60), None),
    ],
)
def test_what_cannot_be_passed_on_is_refused(gateway, path, value, flaw):
    """Also where the content of a field is free."""
    headers = {"Authorization": f"Bearer {gateway.open()}", "Content-Type": "application/json"}
    body = json.dumps(offering(path, value))
    answer = httpx.post(gateway.url + path, content=body, headers=headers)
    assert answer.status_code == (400 if flaw else 200)
    if flaw:
        assert flaw in answer.json()["error"]["message"] and not gateway.policy.asked


def test_an_unknown_path_is_told_in_json(gateway):
    headers = {"Authorization": f"Bearer {gateway.open()}"}
    assert httpx.get(f"{gateway.url}/nothing", headers=headers).json()["error"]["code"] == 404


@pytest.mark.heavy
def test_many_clients_are_served_at_once(gateway):
    """Also beside some that wait for ever."""
    token, body = gateway.open(), {"model": "m", "messages": [{"role": "user", "content": "wait"}]}
    for _ in range(50):
        waits = lambda: gateway.post("/chat/completions", body, token, timeout=60)  # noqa: E731
        threading.Thread(target=waits, daemon=True).start()
    until(lambda: len(gateway.policy.asked) == 50)
    assert play_with_openai(gateway.openai(gateway.open()), False)
    gateway.episodes.end(token, "all")


@pytest.mark.heavy
def test_a_prompt_whose_tokens_are_counted_for_long_holds_up_nobody(gateway, monkeypatch):
    token, counts, go_on = gateway.open(), threading.Event(), threading.Event()

    def count(asked):
        counts.set()
        assert go_on.wait(60)
        return 7

    monkeypatch.setattr(gateway.episodes.find(token), "count_tokens", count)
    body = {"model": "m", "messages": [{"role": "user", "content": "task"}]}
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(gateway.post, "/messages/count_tokens", body, token, timeout=60)
        try:
            assert counts.wait(60)
            other = gateway.post("/chat/completions", body, gateway.open(), timeout=20)
        finally:
            go_on.set()
        assert other.status_code == 200 and counted.result().json() == {"input_tokens": 7}


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
