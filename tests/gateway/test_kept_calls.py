"""A call that is sent again with its key is the same call."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ale_jax.gateway.kept_calls import HEADER, Retries
from ale_jax.gateway.requests import ApiError
from tests.gateway.fake_policy import FakePolicy, Written
from tests.gateway.speech import sample, say
from tests.gateway.test_app import gateway_with, until
from tests.gateway.test_episode import open_episode, request

CHAT = "/chat/completions"


@pytest.fixture
def gateway():
    with gateway_with() as gateway:
        yield gateway


def body(text="task"):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def post(gateway, token, key, asked, path=CHAT, timeout=20.0):
    headers = {"Authorization": f"Bearer {token}", HEADER: key}
    return httpx.post(f"{gateway.url}{path}", json=asked, headers=headers, timeout=timeout)


def release(gateway, text):
    """Lets the policy say this, where it waits."""
    ((conversation, future),) = gateway.policy._waiting.items()
    del gateway.policy._waiting[conversation]
    future.set_result(Written(sample(text, 0), "stop"))


@pytest.mark.parametrize("path", [CHAT, "/completions", "/responses", "/messages"])
def test_a_retry_gets_the_same_answer_and_no_reply_is_sampled(gateway, path):
    token = gateway.open()
    asked = {
        CHAT: body(),
        "/completions": {"prompt": [2, 1100, 5, 4]},
        "/responses": {"input": "task"},
        "/messages": body() | {"max_tokens": 100},
    }[path]
    first, again = (post(gateway, token, "k1", asked, path) for _ in range(2))
    assert first.status_code == 200 and first.json()["id"] == again.json()["id"]
    assert len(gateway.policy.asked) == 1
    other = post(gateway, token, "k2", asked, path)
    assert other.json()["id"] != first.json()["id"], "equal messages are no retry"
    branches = gateway.episodes.end(token, "all")
    assert sum(len(branch.calls) for branch in branches) == 2
    assert not any(call.lost for branch in branches for call in branch.calls)


def test_a_call_whose_client_has_gone_goes_on_and_is_lost_until_it_comes_again(gateway):
    token = gateway.open()
    tree = gateway.episodes.find(token).tree
    with contextlib.suppress(httpx.TimeoutException):
        post(gateway, token, "k", body("wait"), timeout=0.5)
    until(lambda: tree.counts.lost == 1)
    assert not gateway.policy.ended, "the engine goes on"
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(post, gateway, token, "k", body("wait"))
        until(lambda: tree.counts.lost == 0)
        release(gateway, "At last.")
        assert again.result().json()["choices"][0]["message"]["content"] == "At last."
    (branch,) = gateway.episodes.end(token, "all")
    assert len(branch.calls) == 1 and tree.counts.lost == 0


def test_an_answer_that_nobody_came_for_stays_lost(gateway):
    token = gateway.open()
    tree = gateway.episodes.find(token).tree
    with contextlib.suppress(httpx.TimeoutException):
        post(gateway, token, "k", body("wait"), timeout=0.5)
    until(lambda: tree.counts.lost == 1)
    release(gateway, "Nobody hears it.")
    post(gateway, token, "other", body())
    assert tree.counts.lost == 1


def test_a_key_belongs_to_one_request_of_one_episode(gateway):
    token, other = gateway.open(), gateway.open()
    first = post(gateway, token, "k", body())
    changed = post(gateway, token, "k", body("another"))
    assert changed.status_code == 422 and "another request" in changed.json()["error"]["message"]
    elsewhere = post(gateway, other, "k", body())
    assert elsewhere.status_code == 200 and elsewhere.json()["id"] != first.json()["id"]
    assert post(gateway, token, "k" * 257, body()).status_code == 400


def test_what_has_failed_may_be_tried_again(gateway, monkeypatch):
    def refuse(*_):
        raise ValueError("not now")

    token = gateway.open()
    with monkeypatch.context() as broken:
        broken.setattr(gateway.policy, "reply", refuse)
        assert post(gateway, token, "k", body()).status_code == 400
    assert post(gateway, token, "k", body()).status_code == 200


class Listening:
    """A client that waits for its answer."""

    async def is_disconnected(self):
        return False


def sampled_again(texts, **bounds):
    """Whether the first of these calls, of which the policy refuses "bad", is sampled once more if
    it comes again after the others."""

    def reply(messages):
        if messages[-1][1] == "bad":
            raise ValueError("not now")
        return "so"

    policy = FakePolicy(reply)
    episode, retries = open_episode(policy, kept=9), Retries(**bounds)

    async def call(text):
        with contextlib.suppress(ApiError):
            await retries.answer(text, episode, request(say("user", text)), Listening(), "m")

    async def play():
        for text in texts:
            await call(text)
        asked = len(policy.asked)
        await call(texts[0])
        return len(policy.asked) > asked

    return asyncio.run(play())


def test_the_calls_that_are_kept_are_bounded():
    texts = [letter * 100 for letter in "abc"]
    assert not sampled_again(texts, max_kept=3) and sampled_again(texts, max_kept=2)
    assert not sampled_again(texts, max_chars=400) and sampled_again(texts, max_chars=300)


def test_a_call_that_has_failed_is_not_kept():
    assert not sampled_again(["a", "bad", "b"], max_kept=2)
