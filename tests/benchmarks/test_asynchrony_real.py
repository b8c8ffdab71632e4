"""Real runs of the benchmark of asynchrony: their sandboxes, schedules and figures."""

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.config.run import RunConfig
from ale_jax.monitor.times import AttemptTimes, Times
from ale_jax.records import EpisodeKey, Task
from ale_jax.sandbox.api import SandboxLost
from ale_jax.status import Status
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import EVAL, TRAIN, Item
from benchmarks.asynchrony import cases
from benchmarks.asynchrony.latency import BEGIN, WAIT, Latencies, Latency
from benchmarks.asynchrony.real import freed_after, losses
from benchmarks.asynchrony.runs import Finished

PATIENCE_S = 60.0
SPEC = RunConfig().sandbox


def _started(draw, **settings):
    return Latencies(draw, scale=1.0, seed=0, **settings).start(SPEC, {})


def _played(sandbox, split=TRAIN):
    world = CheckedWorld(Latency(), Item("north", 1, split), sandbox)
    key = EpisodeKey(split, 0, 0, Task("north", 1, split))
    return play(world, ScriptedPolicy(["a"] * 9), key, AgentLimits(turns=9))


def test_an_episode_has_the_turns_that_are_drawn_and_a_drawn_reward():
    sandbox = _started(lambda chance: (0.0, 0.01, 0.0))
    episodes = [_played(sandbox) for _ in range(20)]
    assert {each.status for each in episodes} == {Status.FINISHED}
    assert {each.turns for each in episodes} == {3}
    assert {each.reward for each in episodes} == {0.0, 1.0}
    assert min(each.env_seconds for each in episodes) >= 0.01


def test_an_evaluation_waits_for_nothing():
    assert _played(_started(lambda chance: (math.inf,)), EVAL).status == Status.FINISHED


def test_closing_a_sandbox_ends_a_turn_that_would_never_end():
    sandbox = _started(lambda chance: (math.inf,))
    sandbox.run(BEGIN)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(sandbox.run, WAIT)
        sandbox.close()
        with pytest.raises(SandboxLost):
            turn.result(PATIENCE_S)
    assert not sandbox.alive()


def test_all_parties_end_a_turn_together():
    runtime, ended = Latencies(lambda chance: (0.0,), 1.0, seed=0, parties=2), threading.Event()
    first, second = (runtime.start(SPEC, {}) for _ in range(2))
    for each in (first, second):
        each.run(BEGIN)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(first.run, WAIT)
        turn.add_done_callback(lambda _: ended.set())
        assert not ended.wait(0.2)
        second.run(WAIT)
        assert turn.result(PATIENCE_S).output in ("0.0", "1.0")


@pytest.mark.parametrize("case", cases.CASES.values(), ids=cases.CASES)
def test_schedules_differ_from_the_first_one_in_what_they_name_alone(case):
    first, *others = (case.arm(name) for name in case.schedules)
    for other, plan in zip(others, [*case.schedules.values()][1:], strict=True):
        changed = {
            name for name, value in vars(other.setup).items() if value != getattr(first.setup, name)
        }
        assert changed == plan.changes.keys()
        assert changed or other.barrier != first.barrier


def test_what_a_group_no_longer_needs_is_timed_from_its_last_needed_member():
    def attempt(ended, status=Status.FINISHED, group=0):
        return AttemptTimes(0.0, ended, status, group, 1, 1)

    attempts = (
        attempt(1.0),
        attempt(2.0, Status.SANDBOX_LOST),  # is repeated
        attempt(4.0, Status.TURN_LIMIT),
        attempt(4.5, Status.CANCELLED),
        attempt(9.0, group=1),
        attempt(9.5, Status.CANCELLED, group=1),  # whose group is not complete
    )
    config = RunConfig()
    config = dataclasses.replace(config, rl=dataclasses.replace(config.rl, group_size=2))
    run = Finished(config, Times(attempts, ()), (), {}, 0.0)
    assert [*freed_after(run)] == [0.5]


def test_drop_rates_are_of_all_runs_together():
    runs = [
        Finished(RunConfig(), Times((), ()), (), {"north": (3, 1), "south": (4, kept)}, 0.0)
        for kept in (0, 4)
    ]
    found = losses(runs)
    assert found["drop_rates"] == {"north": 0.25, "south": 0.333}
    assert found["drop_rate_ratio"] == 1.33
