"""Combinations of hyperparameters that have no meaning, each with the reason and the remedy.

`AlgoConfig` refuses them. It imports this table, which therefore knows it by its fields only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

WITHOUT_RATIO = ("none", "vanilla")  # the losses that do not compare pi with pi_old
GROUPS_IN_GROUPS = ("gigpo", "hgpo")  # the estimators that compare steps taken in the same state


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A meaningless combination. why: the message and its remedy, a format string whose fields are
    algo (the `AlgoConfig`), a (its advantage) and l (its loss)."""

    name: str
    meets: Callable[[Any], bool]
    why: str


REFUSALS = (
    Refusal(
        "an outcome is not discounted",
        lambda c: c.advantage.estimator == "outcome" and c.gamma != 1.0,
        "gamma {algo.gamma} is not read by the estimator outcome, which gives all chunks the "
        "same advantage: set it to 1.0, or advantage.estimator to chunk_return",
    ),
    Refusal(
        "one trajectory is left out, not one chunk or token",
        lambda c: c.advantage.mean == "leave_one_out" and c.advantage.units != "trajectories",
        "advantage.mean leave_one_out leaves out one trajectory, but the estimator {a.estimator} "
        "takes its mean over smaller units: choose group",
    ),
    Refusal(
        "gigpo compares within groups",
        lambda c: (
            c.advantage.estimator in GROUPS_IN_GROUPS
            and (c.advantage.mean != "group" or c.advantage.std not in ("none", "group"))
        ),
        "advantage.mean {a.mean} and std {a.std} do not fit {a.estimator}, which compares the "
        "members of a group: set mean to group, and std to group or none",
    ),
    Refusal(
        "gigpo without anchors is grpo",
        lambda c: c.advantage.estimator in GROUPS_IN_GROUPS and not c.advantage.anchor_weight,
        "advantage.anchor_weight 0.0 makes {a.estimator} the same as the estimator outcome: "
        "choose that estimator, or set a weight above 0",
    ),
    Refusal(
        "only gigpo has anchors",
        lambda c: c.advantage.estimator not in GROUPS_IN_GROUPS and c.advantage.anchor_weight > 0,
        "advantage.anchor_weight {a.anchor_weight} is not read by the estimator {a.estimator}: "
        "set it to 0.0",
    ),
    Refusal(
        "a depth that is not read",
        lambda c: c.advantage.estimator not in GROUPS_IN_GROUPS and c.advantage.anchor_depth > 0,
        "advantage.anchor_depth {a.anchor_depth} is not read by the estimator {a.estimator}: set "
        "it to 0",
    ),
    Refusal(
        "a hierarchy has depths",
        lambda c: c.advantage.estimator == "hgpo" and not c.advantage.anchor_depth,
        "advantage.anchor_depth 0 leaves hgpo no group within a group: set it to 1 or more (the "
        "paper has 3), or choose gigpo, for which 0 is the whole history",
    ),
    Refusal(
        "only a hierarchy has weights",
        lambda c: c.advantage.estimator != "hgpo" and c.advantage.anchor_exponent > 0,
        "advantage.anchor_exponent {a.anchor_exponent} is not read by the estimator "
        "{a.estimator}: set it to 0.0",
    ),
    Refusal(
        "a tree grows within a group",
        lambda c: c.advantage.estimator == "tree" and c.advantage.mean != "group",
        "advantage.mean {a.mean} does not fit tree, whose root is the mean of the group: set it to "
        "group",
    ),
    Refusal(
        "a tree is not discounted",
        lambda c: c.advantage.estimator == "tree" and c.gamma != 1.0,
        "gamma {algo.gamma} is not read by the estimator tree, which compares mean outcomes: set "
        "it to 1.0",
    ),
    Refusal(
        "only chunk_return chooses what it centres",
        lambda c: c.advantage.centring != "outcome" and c.advantage.estimator != "chunk_return",
        "advantage.centring {a.centring} is not read by the estimator {a.estimator}: set it to "
        "outcome, or advantage.estimator to chunk_return",
    ),
    Refusal(
        "chunks are compared within a group",
        lambda c: (
            c.advantage.centring != "outcome" and c.advantage.mean not in ("group", "leave_one_out")
        ),
        "advantage.centring {a.centring} compares chunks that follow the same start, which mean "
        "{a.mean} does not: set mean to group or leave_one_out, or centring to outcome",
    ),
    Refusal(
        "the std of equal outcomes hides their lengths",
        lambda c: c.advantage.centring != "outcome" and c.advantage.std != "none",
        "advantage.std {a.std} is that of the outcomes: where all are equal, it would make the "
        "advantages 0 that centring {a.centring} finds there. Set std to none, or centring to "
        "outcome",
    ),
    Refusal(
        "tokens have no group to balance",
        lambda c: c.advantage.balance != "none" and c.advantage.of_tokens,
        "advantage.balance {a.balance} weighs the chunks of a group, but the estimator "
        "{a.estimator} credits tokens: set balance to none",
    ),
    Refusal(
        "two weights on failures",
        lambda c: c.advantage.balance != "none" and c.loss.negative_weight != 1.0,
        "loss.negative_weight {l.negative_weight} and advantage.balance {a.balance} both weigh "
        "what is pushed down: set negative_weight to 1.0, or balance to none",
    ),
    Refusal(
        "a mean has no mass of tokens",
        lambda c: (
            c.advantage.balance != "none"
            and c.loss.aggregation in ("chunk_means", "trajectory_means")
        ),
        "advantage.balance {a.balance} counts every policy token, and loss.aggregation "
        "{l.aggregation} does not: choose another aggregation, or set balance to none",
    ),
    Refusal(
        "vanilla has no ratio",
        lambda c: c.loss.kind in WITHOUT_RATIO and c.loss.level != "token",
        "loss.level {l.level} is the level of a ratio, and the loss {l.kind} has none: set it to "
        "token",
    ),
    Refusal(
        "pi_old is not read",
        lambda c: (
            c.loss.kind in WITHOUT_RATIO
            and c.mismatch.is_off
            and c.loss.kl_estimator != "k3_weighted"
            and c.old_logp in ("generating", "step")
        ),
        "old_logp {algo.old_logp} costs a forward pass whose result is not read, because the loss "
        "{l.kind} has no ratio and mismatch is off: set it to sampler",
    ),
    Refusal(
        "decoupled PPO needs two old policies",
        lambda c: c.loss.kind == "decoupled_ppo" and c.old_logp == "step",
        "old_logp step makes the behaviour policy of decoupled_ppo equal to the proximal policy, "
        "so that their ratio is 1: set it to generating or sampler, or loss.kind to ppo",
    ),
    Refusal(
        "a dual clip inside the trust region",
        lambda c: 0.0 < c.loss.dual_clip < 1.0 + c.loss.clip_high,
        "loss.dual_clip {l.dual_clip} would be active inside the trust region, whose upper end is "
        "1 + clip_high {l.clip_high}: set it to that or more (3 is usual), or to 0.0 to switch it "
        "off",
    ),
    Refusal(
        "a constant length without its length",
        lambda c: (c.loss.aggregation == "constant") != (c.loss.constant_tokens > 0),
        "loss.aggregation {l.aggregation} and constant_tokens {l.constant_tokens} do not fit: "
        "set constant_tokens above 0 for constant, and to 0 for the other aggregations",
    ),
    Refusal(
        "a divergence without weight",
        lambda c: (c.loss.kl_estimator != "none") != (c.loss.kl_weight > 0),
        "loss.kl_weight {l.kl_weight} and kl_estimator {l.kl_estimator} do not fit: set both, or "
        "set them to 0.0 and none, and measure_kl if the divergence is only to be measured",
    ),
    Refusal(
        "distributions are known by their most probable tokens",
        lambda c: (c.loss.kl_top > 0) != (c.loss.kl_estimator in ("reverse", "forward")),
        "loss.kl_estimator {l.kl_estimator} and kl_top {l.kl_top} do not fit: set kl_top above 0 "
        "(64 is usual) for reverse and forward, and to 0 for the others",
    ),
    Refusal(
        "nothing to learn from",
        lambda c: c.loss.kind == "none" and not c.loss.kl_weight and not c.loss.observation_weight,
        "loss.kind none leaves advantages out, and there is nothing else to learn from: set "
        "kl_weight or observation_weight above 0, or choose a loss",
    ),
    Refusal(
        "credit that nothing reads",
        lambda c: c.loss.kind == "none" and c.advantage.of_tokens,
        "advantage.estimator {a.estimator} computes credit for tokens, which the loss none does "
        "not read: set it to outcome",
    ),
    Refusal(
        "failures that nothing weighs",
        lambda c: c.loss.kind == "none" and c.loss.negative_weight != 1.0,
        "loss.negative_weight {l.negative_weight} is a factor on advantages, which the loss none "
        "does not read: set it to 1.0",
    ),
    Refusal(
        "k1 has no gradient",
        lambda c: c.loss.kl_estimator == "k1",
        "loss.kl_estimator k1 does not pull towards the reference, because its gradient has the "
        "mean 0 for every reference: choose k2, k3 or k3_weighted. To measure it, set "
        "loss.measure_kl",
    ),
)
