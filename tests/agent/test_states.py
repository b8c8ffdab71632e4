"""Which states are kept, and for how long."""

from ale_jax.agent.api import ReachedState, StateMemory
from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.records import Prefix, Task
from ale_jax.sandbox.api import SavedState
from ale_jax.status import Status
from tests.agent.fake_world import FakeWorld, play
from tests.agent.test_loop import GIVEN, KEY, LIMITS, ListeningPolicy


def key(number):
    return Task("trail", number, "train"), Prefix(("do it", "done"), ("act",))


def state(size):
    return ReachedState(SavedState(bytes(size), ""), (), ())


def test_only_what_took_long_and_is_not_known_is_wanted():
    memory = StateMemory(slow_s=0.5)
    assert memory.wants(key(0), 0.6) and not memory.wants(key(0), 0.5)
    memory.keep(key(0), state(1))
    assert not memory.wants(key(0), 9.0) and memory.wants(key(1), 9.0)


def test_what_cannot_be_put_back_is_not_tried_again():
    memory = StateMemory(slow_s=0.5)
    memory.keep(key(0), None)
    assert memory.get(key(0)) is None and not memory.wants(key(0), 9.0)


def test_keys_alone_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("ale_jax.agent.api.MAX_STATES", 2)
    memory = StateMemory(slow_s=0.5)
    for number in range(3):
        memory.keep(key(number), None)
    assert [memory.wants(key(n), 9.0) for n in range(3)] == [True, False, False]


def test_those_not_used_for_longest_make_room():
    memory = StateMemory(max_bytes=10)
    for number in (0, 1):
        memory.keep(key(number), state(5))
    assert memory.get(key(0)) is not None
    memory.keep(key(2), state(5))
    assert [memory.get(key(n)) is not None for n in (0, 1, 2)] == [True, False, True]
    memory.keep(key(3), state(11))
    assert all(memory.get(key(n)) is None for n in range(4))


class SavingWorld(FakeWorld):
    """Can be brought back to where its prefix led, unless `loads` is False."""

    def __init__(self, loads=True):
        super().__init__()
        self._loads, self.loaded = loads, []

    def save(self):
        return SavedState(b"after " + "".join(self.actions).encode(), "here")

    def load(self, item, sandbox, saved):
        self.loaded.append((item.seed, saved.files))
        return self._loads


def test_a_slow_prefix_is_replayed_once_and_then_restored():
    memory, first, second = StateMemory(slow_s=0.0), SavingWorld(), SavingWorld()
    heard = [ListeningPolicy(["end"]), ListeningPolicy(["end"])]
    play(first, heard[0], KEY, LIMITS, GIVEN, memory)
    assert (first.actions, first.loaded) == (["a", "b", "end"], [])
    episode = play(second, heard[1], KEY, LIMITS, GIVEN, memory)
    assert heard[0].heard == heard[1].heard
    assert (second.actions, second.loaded) == (["end"], [(7, b"after ab")])
    assert (episode.status, episode.reward, episode.turns) == (Status.FINISHED, 1.0, 1)


def test_a_state_that_cannot_be_restored_is_replayed_and_not_tried_again():
    memory, envs = StateMemory(slow_s=0.0), [SavingWorld(loads=False) for _ in range(3)]
    for env in envs:
        play(env, ScriptedPolicy(["end"]), KEY, LIMITS, GIVEN, memory)
        assert env.actions == ["a", "b", "end"]
    assert [len(env.loaded) for env in envs] == [0, 1, 0]


def test_an_episode_that_its_prefix_ends_is_replayed_each_time_for_its_reward():
    """A state that is restored has no reward."""
    memory, whole = StateMemory(slow_s=0.0), Prefix(("do 7", "saw a"), ("a", "end"))
    for env in (SavingWorld(), SavingWorld()):
        episode = play(env, ScriptedPolicy([]), KEY, LIMITS, whole, memory)
        assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
        assert (env.actions, env.loaded) == (["a", "end"], [])
