"""What the server's thread waits for, and what becomes of an answer that nobody waits for."""

import asyncio
import gc
import threading

import pytest

from ale_jax.gateway import answers
from ale_jax.gateway.answers import answer, ask
from ale_jax.gateway.requests import ApiError
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.speech import say
from tests.gateway.test_episode import TASK, offering, open_episode, request


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
    assert episode.tree.counts.lost == 0, "nothing of the first one was sent: this is its retry"


def test_a_reply_that_ends_behind_a_client_that_has_gone_is_no_error(caplog, monkeypatch):
    monkeypatch.setattr(answers, "GONE_S", 0.01)

    async def leave():
        with pytest.raises(ApiError, match="has gone"):
            await answer(open_episode(FakePolicy(lambda _: None)), request(TASK), "m", is_gone)
        await asyncio.sleep(0)  # in which the future hears that its conversation was ended
        gc.collect()

    asyncio.run(leave())
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize(
    ("asked", "is_short"),
    [
        (request(TASK), True),
        (offering("Runs."), True),
        (request(say("user", "x" * 20_000)), False),
        (request(*[say("user", "")] * 2000), False),
        (offering("x" * 20_000), False),
    ],
    ids=["task", "tool", "long", "many", "long tool"],
)
def test_only_what_is_short_is_read_by_the_servers_own_thread(asked, is_short):
    threads = []

    def reply(messages):
        threads.append(threading.current_thread())
        return "so"

    asyncio.run(ask(open_episode(FakePolicy(reply)), asked))
    assert [each is threading.current_thread() for each in threads] == [is_short]
