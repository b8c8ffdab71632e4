"""What a stream leaves behind."""

import asyncio

import pytest

from ale_jax.gateway.api import openai_chat
from ale_jax.gateway.requests import CONTEXT_FULL, ApiError
from ale_jax.gateway.streaming import streamed
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.test_episode import TASK, open_episode, request


def test_nothing_waits_for_news_of_a_stream_that_was_broken_off():
    episode, sent = open_episode(FakePolicy(lambda messages: None)), []

    async def send(message):
        sent.append(message.get("body", b""))

    async def leave():
        events = openai_chat.ChatEvents(with_usage=False)
        response = await streamed(episode, request(TASK), "m", events, print)
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        stream = asyncio.ensure_future(response(scope, None, send))
        while b"I wait" not in b"".join(sent):
            await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        await asyncio.sleep(0)  # in which a cancelled task ends
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(leave()) == set() and episode.tree.counts.lost == 1


def test_a_stream_without_room_for_a_reply_is_refused_before_it_begins():
    policy = FakePolicy(lambda messages: "reply")
    (pending,) = open_episode(policy).ask(request(TASK))
    length = len(pending.call.context_ids())
    events = openai_chat.ChatEvents(with_usage=False)
    episode = open_episode(policy, max_tokens=length)
    with pytest.raises(ApiError) as refused:
        asyncio.run(streamed(episode, request(TASK), "m", events, print))
    assert (refused.value.status, refused.value.code) == (400, CONTEXT_FULL)
    assert open_episode(policy, max_tokens=length + 1).ask(request(TASK))
