"""What the records of an algorithm refuse, row by row."""

import dataclasses
import math

import pytest

from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.loss import LOSSES, LossHypers
from ale_jax.config.refusals import REFUSALS
from tests.rows import each_row

GOOD = AlgoConfig(
    "grpo",
    1.0,
    "sampler",
    AdvantageHypers("outcome", "group", "group"),
    LossHypers("ppo", clip_low=0.2, clip_high=0.2),
    MismatchHypers(),
)


def changed(**changes):
    """GOOD with fields of sections (advantage__mean) or its own."""
    sections: dict = {}
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        sections.setdefault(section, {})[field] = value
    own = sections.pop("", {})
    for name, fields in sections.items():
        own[name] = dataclasses.replace(getattr(GOOD, name), **fields)
    return dataclasses.replace(GOOD, **own)


DECOUPLED = LossHypers("decoupled_ppo", clip_low=0.2, clip_high=0.2, ratio_cap=2.0)
VANILLA = {"loss": LossHypers("vanilla")}
DISTILLED = {"loss": LossHypers("none", kl_weight=1.0, kl_estimator="k2")}
CHUNK_RETURN = {"advantage__estimator": "chunk_return", "advantage__std": "none"}
# One per row of REFUSALS, in its order: what breaks it, what mends it.
ROWS = [
    ({"gamma": 0.9}, {"gamma": 0.9, "advantage__estimator": "chunk_return"}),
    (
        {"advantage__estimator": "step", "advantage__mean": "leave_one_out"},
        {"advantage__mean": "leave_one_out"},
    ),
    (
        {"advantage": AdvantageHypers("gigpo", "batch", "none", anchor_weight=1.0)},
        {"advantage": AdvantageHypers("gigpo", "group", "none", anchor_weight=1.0)},
    ),
    ({"advantage__estimator": "gigpo"}, {}),
    ({"advantage__anchor_weight": 1.0}, {}),
    ({"advantage__anchor_depth": 1}, {}),
    (
        {"advantage": AdvantageHypers("hgpo", "group", "none", anchor_weight=1.0)},
        {"advantage": AdvantageHypers("hgpo", "group", "none", anchor_weight=1.0, anchor_depth=1)},
    ),
    ({"advantage__anchor_exponent": 1.0}, {}),
    (
        {"advantage": AdvantageHypers("tree", "batch", "none")},
        {"advantage": AdvantageHypers("tree", "group", "batch")},
    ),
    ({"gamma": 0.9, "advantage__estimator": "tree"}, {"advantage__estimator": "tree"}),
    (
        {"advantage__centring": "chunk"},
        {"advantage__centring": "chunk"} | CHUNK_RETURN,
    ),
    (
        {"advantage__centring": "chunk", "advantage__mean": "batch"} | CHUNK_RETURN,
        {"advantage__centring": "chunk", "advantage__mean": "leave_one_out"} | CHUNK_RETURN,
    ),
    (
        {"advantage__centring": "distance"} | CHUNK_RETURN | {"advantage__std": "group"},
        {"advantage__centring": "distance"} | CHUNK_RETURN,
    ),
    (
        {"advantage__balance": "group", "advantage__estimator": "gae"},
        {"advantage__balance": "group"},
    ),
    (
        {"advantage__balance": "group", "loss__negative_weight": 0.1},
        {"advantage__balance": "group", "loss__negative_weight": 1.0},
    ),
    (
        {"advantage__balance": "group", "loss__aggregation": "trajectory_means"},
        {"advantage__balance": "group", "loss__aggregation": "trajectories"},
    ),
    ({"loss": LossHypers("vanilla", level="chunk")}, VANILLA),
    (
        VANILLA | {"old_logp": "step"},
        VANILLA | {"old_logp": "step", "mismatch": MismatchHypers("token", 2.0)},
    ),
    ({"loss": DECOUPLED, "old_logp": "step"}, {"loss": DECOUPLED}),
    ({"loss__dual_clip": 1.1}, {"loss__dual_clip": 1.2}),
    (
        {"loss__aggregation": "constant"},
        {"loss__aggregation": "constant", "loss__constant_tokens": 9},
    ),
    ({"loss__kl_weight": 0.1}, {"loss__kl_weight": 0.1, "loss__kl_estimator": "k3"}),
    (
        {"loss__kl_weight": 0.1, "loss__kl_estimator": "forward"},
        {"loss__kl_weight": 0.1, "loss__kl_estimator": "forward", "loss__kl_top": 4},
    ),
    (
        {"loss": LossHypers("none")},
        {"loss": LossHypers("none", kl_weight=1.0, kl_estimator="k2")},
    ),
    (
        {"advantage": AdvantageHypers("token_return", "none", "none")} | DISTILLED,
        {"advantage": AdvantageHypers("outcome", "none", "none")} | DISTILLED,
    ),
    (
        {"loss": dataclasses.replace(DISTILLED["loss"], negative_weight=0.1)},
        DISTILLED,
    ),
    (
        {"loss__kl_weight": 0.1, "loss__kl_estimator": "k1"},
        {"loss__kl_weight": 0.1, "loss__kl_estimator": "k2"},
    ),
]


@each_row(
    "refusal, bad, good",
    [(refusal, *row) for refusal, row in zip(REFUSALS, ROWS, strict=True)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_combination_that_means_nothing_is_refused_with_the_remedy(refusal, bad, good):
    why = refusal.why.partition("{")[0]
    with pytest.raises(ValueError) as refused:
        changed(**bad)
    assert str(refused.value).startswith(why) and "{" not in str(refused.value)
    changed(**good)


GIGPO = AdvantageHypers("gigpo", "group", "none", anchor_weight=1.0)
# The other halves of refusals that have two.
OTHER_HALVES = [
    (
        "gigpo compares within groups",
        {"advantage": dataclasses.replace(GIGPO, std="batch")},
    ),
    (
        "only a hierarchy has weights",
        {"advantage": dataclasses.replace(GIGPO, anchor_exponent=1.0)},
    ),
    (
        "chunks are compared within a group",
        {"advantage__centring": "distance", "advantage__mean": "tag"} | CHUNK_RETURN,
    ),
    (
        "the std of equal outcomes hides their lengths",
        {"advantage__centring": "chunk"} | CHUNK_RETURN | {"advantage__std": "group"},
    ),
    (
        "tokens have no group to balance",
        {"advantage__balance": "group", "advantage__estimator": "turn_gae"},
    ),
    (
        "a mean has no mass of tokens",
        {"advantage__balance": "group", "loss__aggregation": "chunk_means"},
    ),
    ("pi_old is not read", VANILLA | {"old_logp": "generating"}),
    ("a constant length without its length", {"loss__constant_tokens": 9}),
    ("a divergence without weight", {"loss__kl_estimator": "k3"}),
]


@each_row("name, bad", OTHER_HALVES)
def test_the_other_half_of_a_combination_is_refused_too(name, bad):
    (refusal,) = [each for each in REFUSALS if each.name == name]
    with pytest.raises(ValueError) as refused:
        changed(**bad)
    assert str(refused.value).startswith(refusal.why.partition("{")[0])


@each_row(
    "bad, answer",
    [
        ({"gamma": 0.0}, "gamma 0.0 must be in (0, 1]"),
        ({"gamma": 1.5}, "gamma 1.5 must be in (0, 1]"),
        ({"gamma": math.nan}, "gamma nan must be in (0, 1]"),
        ({"old_logp": "vllm"}, "old_logp 'vllm' is unknown: choose one of sampler, generating"),
        ({"advantage__estimator": "vtrace"}, "estimator 'vtrace' is unknown"),
        ({"advantage__mean": "median"}, "mean 'median' is unknown"),
        ({"advantage__std": "leave_one_out"}, "std 'leave_one_out' is unknown"),
        ({"advantage__centring": "turn"}, "centring 'turn' is unknown"),
        ({"advantage__balance": "batch"}, "balance 'batch' is unknown"),
        ({"advantage__failure_reward": 1.0}, "failure_reward 1.0 must be in"),
        ({"advantage__clip": -1.0}, "clip -1.0 must be in"),
        ({"advantage__anchor_depth": -1}, "anchor_depth -1 must be in"),
        ({"advantage__anchor_exponent": -1.0}, "anchor_exponent -1.0 must be in"),
        ({"loss__kind": "pg"}, "kind 'pg' is unknown"),
        ({"loss__level": "word"}, "level 'word' is unknown"),
        ({"loss__clip_low": -0.1}, "clip_low -0.1 must be in"),
        ({"loss__clip_high": math.inf}, "clip_high inf must be in"),
        ({"loss__negative_weight": 2.0}, "negative_weight 2.0 must be in"),
        ({"loss__aggregation": "rows"}, "aggregation 'rows' is unknown"),
        ({"loss__tau": 0.1}, "tau 0.1 is not read by the loss ppo: set it to 0.0"),
        ({"loss__tau_negative": 1.0}, "tau_negative 1.0 is not read by the loss ppo"),
        (
            {"loss__kind": "sapo", "loss__clip_low": 0.0, "loss__clip_high": 0.0, "loss__tau": 1.0},
            "tau_negative 0.0 makes the loss sapo meaningless",
        ),
        ({"loss__observation_weight": -0.1}, "observation_weight -0.1 must be in"),
        ({"loss__clip_low": 0.0}, "clip_low 0.0 makes the loss ppo meaningless"),
        ({"loss__clip_high": 0.0}, "clip_high 0.0 makes the loss ppo meaningless"),
        ({"loss__entropy_weight": -1.0}, "entropy_weight -1.0 must be in"),
        ({"mismatch__filter_high": 1.2}, "filter_high 1.2 is not read"),
        ({"mismatch__filter_low": 0.8}, "filter_low 0.8 is not read"),
        ({"mismatch__filter_level": "chunk"}, "filter_high 0.0 must be in [1.0"),
        ({"mismatch__weight_level": "token", "mismatch__weight_cap": 0.5}, "weight_cap 0.5 must"),
        ({"mismatch__weight_cap": 2.0}, "weight_cap 2.0 is not read"),
    ],
)
def test_a_bad_field_is_named_with_its_value(bad, answer):
    with pytest.raises(ValueError) as refused:
        changed(**bad)
    assert answer in str(refused.value)


def test_who_compares_a_group():
    for mean, std, compares in (
        ("group", "none", True),
        ("leave_one_out", "none", True),
        ("none", "group", True),
        ("batch", "tag", False),
        ("none", "none", False),
    ):
        assert AdvantageHypers("outcome", mean, std).compares_a_group == compares


def test_every_loss_is_described():
    from ale_jax.algo.losses import TOKEN_LOSSES

    assert TOKEN_LOSSES.keys() == LOSSES.keys()
