"""Which engine gets a conversation."""

from collections import Counter

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.records import EpisodeKey, Task
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas


class Named:
    """Conversations that only know their names."""

    def __init__(self):
        self.open_names, self.calls = set(), []

    def open(self, name, key, sampling, prefix_turns, redraw):
        self.open_names.add(name)

    def activity(self, name):
        return self.calls.append(("activity", name))

    stop = start_version = activity

    def close(self, name, episode):
        self.open_names.remove(name)
        return episode


@pytest.fixture
def engines():
    return [Named() for _ in range(3)]


@pytest.fixture
def replicas(engines):
    return PolicyReplicas(
        [
            PolicyReplica(each, str(port), lambda port=port: 10 * port)
            for port, each in enumerate(engines)
        ]
    )


def _open(replicas, group, member, phase="train"):
    """The number of the engine."""
    key = EpisodeKey(phase, group, member, Task("trail", group, "train"))
    return int(replicas.open(f"{phase}-{group}-{member}", key, Sampling(), (), 0))


def test_engines_are_equally_loaded(replicas):
    used = Counter(_open(replicas, group, 0) for group in range(9))
    assert used == {0: 3, 1: 3, 2: 3}


def test_the_freest_engine_is_next_and_among_equals_that_of_the_group(replicas):
    homes = [_open(replicas, group, 0) for group in range(3)]
    assert [_open(replicas, group, 1) for group in (2, 0, 1)] == [homes[2], homes[0], homes[1]]
    replicas.close("train-1-0", None)
    assert _open(replicas, 0, 2) == homes[1]
    # Another phase's group of the same number is another group.
    for group in range(3):
        replicas.close(f"train-{group}-1", None)
    replicas.close("train-0-2", None)
    replicas.close("train-2-0", None)
    assert _open(replicas, 0, 0, "eval/final") == homes[1]


def test_a_conversation_stays_with_its_engine(replicas, engines):
    for group in range(3):
        number = _open(replicas, group, 0)
        name = f"train-{group}-0"
        assert engines[number].open_names == {name}
        for call in (replicas.activity, replicas.stop, replicas.start_version):
            call(name)
        assert len(engines[number].calls) == 3
        assert replicas.close(name, "episode") == "episode"
        assert not engines[number].open_names
        engines[number].calls.clear()


def test_tokens_of_all_engines_are_counted(replicas):
    assert replicas.sampled_tokens() == 0 + 10 + 20
