"""Errors in the words that clients act on: what to shorten, and what not to repeat."""

import contextlib
import json
import re

import anthropic
import httpx
import openai
import pytest

from ale_jax.gateway.api import anthropic_messages, openai_chat
from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.requests import CONTEXT_FULL, ContextFull
from ale_jax.gateway.server import served
from ale_jax.status import Status
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.test_episode import open_episode

USER = [{"role": "user", "content": "task"}]  # 7 tokens with the begin of the reply
# What Claude Code looks for, and of other clients the most common patterns.
CLAUDE = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", re.IGNORECASE)
OTHERS = ("exceeds the context window", "maximum context length is 7 tokens", "resulted in 8 tok")


@contextlib.contextmanager
def limited(policy=None, **limits):
    """The URL and the token of an episode with these limits, and the episode."""
    episodes = Episodes()
    episode = open_episode(policy or FakePolicy(lambda messages: "So."), **limits)
    token = episodes.open(episode)
    with served(make_app(episodes, "policy")) as url:
        yield url, token, episode


def claude(url, token):
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=token, max_retries=0)


def codex(url, token):
    return openai.OpenAI(base_url=url, api_key=token, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_claude_code_is_told_that_it_may_compact(stream):
    with limited(max_tokens=7) as (url, token, episode):
        with pytest.raises(anthropic.BadRequestError) as refused:
            claude(url, token).messages.create(
                model="m", max_tokens=9, messages=USER, stream=stream
            )
        assert CLAUDE.search(refused.value.message).groups() == ("8", "7")
        assert refused.value.body["error"]["type"] == "invalid_request_error"
        assert episode.limit is Status.TOKEN_LIMIT


@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_openai_are_told_by_code_and_in_words(stream):
    with limited(max_tokens=7) as (url, token, _):
        with pytest.raises(openai.BadRequestError) as refused:
            codex(url, token).chat.completions.create(model="m", messages=USER, stream=stream)
        assert refused.value.code == CONTEXT_FULL
        assert all(words in refused.value.message for words in OTHERS)


def events(url, token):
    """The events of a response that is streamed."""
    answer = httpx.post(
        f"{url}/responses",
        json={"model": "m", "input": USER, "stream": True},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_codex_is_told_in_the_stream_which_it_reads():
    with limited(max_tokens=7) as (url, token, _):
        told, failed = events(url, token)
        assert (told["type"], told["code"]) == ("error", CONTEXT_FULL)
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"] == CONTEXT_FULL
        assert OTHERS[0] in failed["response"]["error"]["message"]
        client = codex(url, token)
        with pytest.raises(openai.APIError, match=OTHERS[0]) as refused:
            list(client.responses.create(model="m", input=USER, stream=True))
        assert refused.value.code == CONTEXT_FULL
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="m", input=USER)


def test_what_goes_wrong_in_a_response_that_has_begun_is_its_failure(monkeypatch):
    """Here, the engine finds no room for a first token."""
    policy = FakePolicy(lambda messages: "So.")
    with limited(policy) as (url, token, episode):
        full = lambda pending, asked: (_ for _ in ()).throw(ContextFull((8, 7)))  # noqa: E731
        monkeypatch.setattr(episode, "answer", full)
        *begun, told, failed = events(url, token)
        ids = {event["response"]["id"] for event in begun if "response" in event}
        assert begun[0]["type"] == "response.created" and ids == {failed["response"]["id"]}
        assert told["code"] == failed["response"]["error"]["code"] == CONTEXT_FULL
        numbers = [event["sequence_number"] for event in (*begun, told, failed)]
        assert numbers == list(range(len(numbers)))


def test_what_was_not_counted_has_no_numbers():
    full = ContextFull(None)
    assert anthropic_messages.error(full)["error"]["message"] == "prompt is too long"
    told = openai_chat.error(full)["error"]
    assert told["code"] == CONTEXT_FULL and "exceeds the context window" in told["message"]


LIMITED = {
    "/chat/completions": ({"messages": USER}, 403),
    "/completions": ({"prompt": [2, 1100, 5, 4]}, 403),
    "/messages": ({"messages": USER, "max_tokens": 9}, 403),
    "/responses": ({"input": USER}, 400),
}


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LIMITED)
def test_no_client_repeats_a_call_after_the_last_turn(path, stream):
    """SDKs repeat neither status, and Codex each but 400."""
    with limited(max_replies=1, kept=2) as (url, token, episode):
        body, status = LIMITED[path]
        ask = {"json": body | {"stream": stream}, "headers": {"Authorization": f"Bearer {token}"}}
        answers = [httpx.post(url + path, **ask) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, status]
        assert "limit of 1 replies" in answers[1].json()["error"]["message"]
        assert episode.limit is Status.TURN_LIMIT
