"""The store of answers: once, bounded, and not for ever."""

import asyncio

import pytest

from ale_jax.sandbox.service.answers import Answer, Answers
from ale_jax.sandbox.service.protocol import Refusal
from tests.rows import each_row


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Counting:
    """Answers with how often it was asked."""

    def __init__(self, size=0, again=False, error=None):
        self.times, self._size, self._again, self._error = 0, size, again, error

    async def __call__(self):
        self.times += 1
        await asyncio.sleep(0)
        if self._error:
            raise self._error
        return Answer(200, (), b"x" * self._size, self._again)


def play(scene, count=4, max_bytes=100, seconds=10.0):
    clock = Clock()
    asyncio.run(scene(Answers(count, max_bytes, seconds, clock), clock))


def test_an_answer_is_kept_for_its_time():
    async def scene(answers, clock):
        act = Counting()
        await answers.once(("ann", "1"), b"d", act)
        clock.now = 10.0
        await answers.once(("ann", "1"), b"d", act)
        assert act.times == 1
        clock.now = 10.1
        await answers.once(("ann", "1"), b"d", act)
        assert act.times == 2

    play(scene)


def test_those_at_once_share_one():
    async def scene(answers, clock):
        act = Counting()
        await asyncio.gather(*(answers.once(("ann", "1"), b"d", act) for _ in range(5)))
        assert act.times == 1
        with pytest.raises(Refusal, match="another request"):
            await answers.once(("ann", "1"), b"e", act)

    play(scene)


def test_another_token_has_ids_of_its_own():
    async def scene(answers, clock):
        act = Counting()
        await answers.once(("ann", "1"), b"d", act)
        await answers.once(("bob", "1"), b"e", act)
        assert act.times == 2

    play(scene)


@each_row("size, left", [(0, 4), (30, 3), (60, 1), (101, 0)])
def test_the_oldest_go_when_there_are_too_many(size, left):
    async def scene(answers, clock):
        first = [Counting(size) for _ in range(5)]
        for number, act in enumerate(first):
            await answers.once(("ann", str(number)), b"d", act)
        for number in reversed(range(5)):
            act = Counting()
            await answers.once(("ann", str(number)), b"d", act)
            assert act.times == (0 if number >= 5 - left else 1)
            if act.times:
                return

    play(scene)


def test_what_was_not_done_is_done_anew():
    async def scene(answers, clock):
        for act in (Counting(again=True), Counting(error=RuntimeError("it failed"))):
            for _ in range(2):
                try:
                    await answers.once(("ann", "1"), b"d", act)
                except RuntimeError:
                    assert act.times
            assert act.times == 2

    play(scene)


def test_it_goes_on_when_its_caller_goes_away():
    async def scene(answers, clock):
        act = Counting(size=3)
        waiting = asyncio.ensure_future(answers.once(("ann", "1"), b"d", act))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await answers.once(("ann", "1"), b"d", act)).body == b"xxx"
        assert act.times == 1

    play(scene)
