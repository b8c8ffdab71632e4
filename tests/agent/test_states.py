"""Which states are kept, and for how long."""

from ale_jax.agent.api import StateMemory
from ale_jax.records import Prefix, Task
from ale_jax.sandbox.api import SavedState


def key(number):
    return Task("trail", number, "train"), Prefix(("do it", "done"), ("act",))


def state(size):
    return SavedState(bytes(size), "")


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
