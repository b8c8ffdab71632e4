"""A run that is stopped while it plays the oracles of its training tasks does not play on."""

from types import SimpleNamespace

import pytest

from ale_jax.config.worlds import Domain
from ale_jax.data.experts import TEACHER, Expert
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Task
from ale_jax.system.start import Setting, Start, open_resampler, play_oracles
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_turn
from tests.system.configs import smoke_config

RESAMPLED = {"scheme": "rollback", "teacher": "oracle"}


class Stopped:
    """In place of StopSignals, after a signal came."""

    def check(self):
        raise KeyboardInterrupt


@pytest.fixture
def setting():
    worlds = {
        "train": (Domain("countdown", ("countdown3",)),),
        "held_out": (),
        "tasks_per_family": 2,
    }
    evaluated = {"held_out_tasks": 0}
    config = smoke_config(worlds=worlds, eval=evaluated, resampling=RESAMPLED)
    return Setting(config, None, Stopped(), *[None] * 4)


def test_while_their_conversations_are_made(setting):
    shown = []
    progress = SimpleNamespace(phase=lambda *_, **__: None, update=shown.append)
    tokenizer = ChatTokenizer(train_bpe((), 300))
    with pytest.raises(KeyboardInterrupt):
        play_oracles(setting, tokenizer, SimpleNamespace(progress=progress))
    assert shown == []


def test_while_they_are_played_again_as_the_policy_will_meet_them(setting):
    oracle = Expert(Task("countdown3", 0, "train"), (make_turn([1], [2]),), TEACHER, 1.0)
    start = Start(None, None, Cursor(), [oracle])
    logger = SimpleNamespace(events=SimpleNamespace(record=None))
    played = []

    def play(requests, sampling, on_result=lambda done: None):
        on_result(0)
        played.extend(requests)
        return []

    with pytest.raises(KeyboardInterrupt):
        open_resampler(setting, start, SimpleNamespace(play=play), logger)
    assert played == []
