"""How Python is set while a process serves a policy."""

import gc
import sys
import weakref

import pytest

from ale_jax.system.interpreter import (
    THREAD_SWITCH_SECONDS,
    YOUNG_OBJECTS,
    made_for_serving,
)

pytestmark = pytest.mark.heavy


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_what_is_there_is_left_alone_and_what_comes_is_collected():
    thresholds = gc.get_threshold()
    kept = [Node()]
    with made_for_serving():
        assert gc.get_freeze_count() > 0
        assert not any(each is kept for each in gc.get_objects())
        assert gc.get_threshold() == (YOUNG_OBJECTS, *thresholds[1:])
        ref = cycle()
        gc.collect()
        assert ref() is None
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds


def test_an_error_within_restores_the_collector():
    thresholds = gc.get_threshold()
    with pytest.raises(KeyError), made_for_serving():
        raise KeyError
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds


def test_threads_take_turns_sooner_than_python_lets_them():
    before = sys.getswitchinterval()
    with made_for_serving():
        assert sys.getswitchinterval() == pytest.approx(THREAD_SWITCH_SECONDS)
        assert sys.getswitchinterval() <= before / 10
    assert sys.getswitchinterval() == before
