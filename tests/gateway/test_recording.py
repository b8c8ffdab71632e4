"""An agent that talks to a recording sees what it saw when it was recorded."""

import json
import os
import signal
import subprocess
import sys

import httpx
import openai
import pytest

from ale_jax.gateway.recording import Exchange, Player, append, difference, make_recorder, read
from ale_jax.gateway.server import served
from tests.gateway.test_app import gateway_with, play_with_openai

CHAT = "/chat/completions"


def client(url, key="a key"):
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def say(text, *told):
    """An exchange in which the model says this, after what it was told."""
    messages = [{"role": role, "content": content} for role, content in told]
    answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    asked = {"model": "policy", "messages": messages, "tool_choice": "none"}
    return Exchange(CHAT, asked, 200, "application/json", json.dumps(answer))


@pytest.mark.parametrize("stream", [False, True])
def test_a_played_recording_is_the_talk_that_was_recorded(tmp_path, stream):
    file = tmp_path / "talk.jsonl"
    with gateway_with() as gateway:
        token = gateway.open()
        with served(make_recorder(gateway.url, file)) as url:
            models = client(url, token).models.list().data
            told = play_with_openai(client(url, token), stream)
            with pytest.raises(openai.AuthenticationError):
                client(url, "unknown").models.list()
    assert token not in file.read_text() and "unknown" not in file.read_text()
    player = Player(read(file))
    assert [each.status for each in player.left] == [200, 200, 200, 401]
    with served(player.app) as url:
        assert client(url).models.list().data == models
        assert play_with_openai(client(url), stream) == told
        with pytest.raises(openai.AuthenticationError):
            client(url).models.list()
        with pytest.raises(openai.NotFoundError, match="no further call of /models"):
            client(url).models.list()
    assert not player.left


def test_a_call_that_was_not_recorded_says_where_it_differs():
    player = Player([say("hello", ("user", "task"))])
    asked = player.left[0].request
    with served(player.app) as url:
        changed = asked | {"messages": [{"role": "user", "content": "another"}]}
        found = httpx.post(f"{url}{CHAT}", json=changed)
        assert found.status_code == 404
        place = 'request.messages.0.content: "another" instead of "task"'
        assert place in found.json()["error"]["message"]
        assert httpx.post(f"{url}{CHAT}", content=b"{").status_code == 400
        assert httpx.post(f"{url}{CHAT}", json=asked).status_code == 200
    assert not player.left


def test_equal_calls_are_answered_in_their_order():
    told = ("user", "task")
    player = Player([say("one", told), say("two", told), say("three", ("user", "other"))])
    other, asked = player.left[2].request, player.left[0].request
    with served(player.app) as url:
        answers = [httpx.post(f"{url}{CHAT}", json=each).json() for each in (other, asked, asked)]
    said = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert said == ["three", "one", "two"]


def test_an_api_that_is_not_there_is_said(tmp_path):
    with served(make_recorder("http://127.0.0.1:9/v1", tmp_path / "talk.jsonl")) as url:
        found = httpx.post(f"{url}{CHAT}", json={})
    assert found.status_code == 502 and "127.0.0.1:9" in found.json()["error"]["message"]
    assert not (tmp_path / "talk.jsonl").exists()


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, ""),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "request.a.1.b: 3 instead of 2"),
        ({"a": 1}, {}, "request.a is missing"),
        ({}, {"a": 1}, "request.a is new"),
        ({"a": [1]}, {"a": []}, "request.a: 0 entries instead of 1"),
        ({"a": 1}, {"a": True}, "request.a: true instead of 1"),
        (None, {}, "request: {} instead of null"),
    ],
)
def test_the_first_difference_is_named(expected, found, where):
    assert difference(expected, found) == where


@pytest.mark.heavy
@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"path": "/x"}',
        '{"path": "x", "request": 1, "status": 1, "kind": "", "answer": ""}',
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, line):
    file = tmp_path / "talk.jsonl"
    append(file, say("hello"))
    file.write_text(file.read_text() + line + "\n")
    command = [sys.executable, "-m", "ale_jax.gateway.recording", "replay", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "line 2: no exchange" in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("left", [0, 1])
def test_an_agent_is_tested_without_a_model(tmp_path, left):
    file, call = tmp_path / "talk.jsonl", {"name": "bash", "arguments": {"command": "echo 42"}}
    bash = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    done = '<tool_call>{"name": "finish", "arguments": {"answer": "42"}}</tool_call>'
    told = [("system", "Work."), ("user", "What is it?")]
    append(file, say(bash, *told))
    second = say(done, *told, ("assistant", bash), ("tool", "42"))
    second.request["messages"][-1]["tool_call_id"] = "000000000"
    append(file, second)
    for _ in range(left):
        append(file, say("nobody asks", ("user", "x")))
    with subprocess.Popen(
        [sys.executable, "-m", "ale_jax.gateway.recording", "replay", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as player:
        url = player.stdout.readline().removeprefix("listens at ").strip()
        agent = subprocess.run(
            [sys.executable, "examples/shell_agent.py", "Work.", "What is it?"],
            env=os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        player.send_signal(signal.SIGINT)
        _, said = player.communicate(timeout=60)
    assert agent.stdout.strip() == "42", agent.stderr
    assert player.returncode == left
    assert ("1 calls were not made" in said) == bool(left)
