"""Three batches of four updates each, against the algorithm as it is written out."""

import dataclasses

import pytest

from benchmarks.protocols.__main__ import PROTOCOLS, measure, run_config

pytestmark = pytest.mark.slow

GRPO = PROTOCOLS["GRPO, mu 4"]


def test_grpo_with_four_epochs_is_what_its_paper_says():
    found = measure(GRPO)
    assert found["updates"] == 12 and 0.1 < found["clipped"] < 0.9
    assert found["difference"] < 1e-6 < 3e-5 < found["move"]


def test_another_clip_range_is_found(monkeypatch):
    monkeypatch.setattr("benchmarks.protocols.__main__.BATCHES", 1)
    narrow = dataclasses.replace(GRPO, clip_high=0.1)
    assert measure(narrow)["difference"] > 1e-5


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_the_learner_is_told_the_updates_of_the_protocol(protocol):
    learn = run_config(protocol).learn
    assert (learn.epochs, learn.minibatches) == (protocol.epochs, protocol.minibatches)
