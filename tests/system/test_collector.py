"""What a process that serves a policy spares the garbage collector."""

import gc
import weakref

import pytest

from ale_jax.system.collector import YOUNG_OBJECTS, spared_by_collector

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
    with spared_by_collector():
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
    with pytest.raises(KeyError), spared_by_collector():
        raise KeyError
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds
