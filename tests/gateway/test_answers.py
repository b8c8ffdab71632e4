"""What becomes of an answer when its client does not wait for it."""

import asyncio

import pytest

from ale_jax.gateway.answers import answer
from ale_jax.gateway.requests import ApiError
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.test_episode import TASK, open_episode, request


async def is_gone():
    return True


async def is_there():
    return False


def test_an_answer_is_lost_if_its_client_left_just_before_the_engine_was_done():
    policy = FakePolicy(lambda messages: f"reply {len(policy.asked)}")
    episode, asked = open_episode(policy), request(TASK)
    with pytest.raises(ApiError) as gone:
        asyncio.run(answer(episode, asked, "m", is_gone))
    assert gone.value.status == 499 and episode.tree.counts.lost == 1
    again = asyncio.run(answer(episode, asked, "m", is_there))
    assert again.choices[0].message.content == "reply 2"
    assert episode.tree.counts.lost == 1, "the first one may have been acted on"
