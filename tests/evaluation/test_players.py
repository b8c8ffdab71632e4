"""What an episode becomes when it is written down."""

import contextlib
import time

import pytest

from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.config.worlds import Domain
from ale_jax.evaluation.plan import Plan
from ale_jax.evaluation.players import EndpointPlayer, record_of
from ale_jax.recorded.formats import conversation_of
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from ale_jax.worlds.api import Message
from ale_jax.worlds.endpoint import Endpoint
from ale_jax.worlds.families import PlayableFamilies, open_families
from tests.evaluation.endpoint import endpoint

FAMILIES = open_families((Domain("countdown", ("countdown3",)),))
KEY = EpisodeKey("eval/a", 0, 2, Task("countdown3", 7, "train"))
TOLD = (("user", "go", False), ("assistant", "a", True), ("user", "no", False))


def episode(**fields):
    counts = {"turns": 2, "malformed_calls": 0, "seconds": 1.0, "env_seconds": 0.0}
    return Episode(key=KEY, status=Status.FINISHED, reward=1.0, **counts, **fields)


def test_replies_that_failed_or_were_cut_say_so():
    told = (*TOLD, ("assistant", "b", False))
    record = record_of(FAMILIES, episode(told=told, cut_replies=(1,)), tokens=4)
    assert [each.get("is_error") for each in record.messages] == [None, True, None, None]
    assert [each.get("weight") for each in record.messages] == [None, None, None, 0]
    read = conversation_of(vars(record))
    assert (read.failed, read.learned) == ((True, False), (True, False))


def test_of_an_agents_program_the_messages_are_those_of_its_turns():
    record = record_of(FAMILIES, episode(cut_replies=None), 4, 2, [Message("user", "go")])
    assert record.messages == [{"role": "user", "content": "go"}] and record.turns == 2


def test_an_evaluation_that_is_interrupted_ends_after_the_replies_in_progress():
    families = open_families((Domain("tests.evaluation.faulty_worlds:Sound", ("numbers",)),))
    plan = Plan(families, limit=9)
    first, *_ = plan.episodes()

    def answer(body):
        if f"say {first.task.item}" in [each["content"] for each in body["messages"]]:
            return str(first.task.item)
        time.sleep(0.05)
        return "look"  # which goes on until the limit of turns

    def interrupted(record):
        raise KeyboardInterrupt

    worlds = PlayableFamilies(families, SandboxSpec())
    runner = EpisodeRunner(lambda spec: None, worlds, AgentLimits(turns=50))
    with endpoint(answer) as (url, asked), contextlib.closing(runner):
        player = EndpointPlayer(Endpoint(url, "any"), Sampling(), 8, workers=3, retries=2)
        with pytest.raises(KeyboardInterrupt):
            player.play(plan, plan.episodes(), runner, interrupted)
        assert 1 < len(asked) < 20
