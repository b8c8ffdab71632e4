"""A policy stays where it is if there is nothing to learn, by whatever preset it is trained and
however it is sampled."""

import math

import pytest

from ale_jax.configs.algorithms import PRESETS
from benchmarks import no_signal
from benchmarks.laboratory.credit import arm
from benchmarks.no_signal import BAR, WAYS, Drift, drifts, lowered, summary

SEEDS = 16


@pytest.mark.heavy
def test_no_preset_drifts_however_it_is_sampled():
    found = summary(drifts({name: arm(name) for name in PRESETS}, seeds=SEEDS))
    assert len(found["cells"]) == len(PRESETS) * len(WAYS) and found["presets"] == list(PRESETS)
    assert found["worst_z"] < BAR, found


@pytest.mark.heavy
def test_failures_at_a_tenth_of_their_weight_do_not_drift_either():
    presets = {name: lowered(arm(name)) for name in ("ipa", "grpo")}
    assert all(each.algo.loss.negative_weight == 0.1 for each in presets.values())
    assert summary(drifts(presets, seeds=SEEDS))["worst_z"] < BAR


@pytest.mark.heavy
def test_a_learner_that_does_not_know_how_tokens_were_drawn_drifts_every_time():
    (plain,) = drifts({"grpo": arm("grpo")}, plain=True, seeds=SEEDS).values()
    z = [each.z for each in plain.values()]
    assert all(abs(each) > BAR for each in z), z
    colder, warmer, *cut = z[1:]
    assert colder < 0 < warmer and max(cut) < 0, "what is likely becomes likelier, or less so"


def test_the_summary_names_the_worst_drift_and_drifts_of_one_sign():
    up, down = Drift(2.0, 1.0), Drift(-3.0, 1.0)
    found = summary({"ipa": {"a": up, "b": up}, "grpo": {"a": up, "b": down}})
    assert (found["worst_z"], found["one_sign"]) == (3.0, ["ipa"])
    assert [cell["z"] for cell in found["cells"]] == [2.0, 2.0, 2.0, -3.0]
    assert math.isclose(no_signal.lowered(arm("ipa_balanced")).algo.loss.negative_weight, 1.0)
