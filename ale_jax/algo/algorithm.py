"""What a policy-gradient algorithm is made of, as frozen records, and what does not go together.

Advantages, loss and mismatch correction are chosen apart; `REFUSALS` lists the combinations that
mean nothing. Presets, which are points in this space, lie in `configs/algorithms.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ale_jax.algo.hypers import require_choice, require_range

# Each estimator, and of what its mean and std are taken.
ESTIMATORS = {
    "chunk_return": "trajectories",
    "outcome": "trajectories",
    "gigpo": "trajectories",
    "step": "chunks",
    "token_return": "tokens",
    "gae": "tokens",
}
MEANS = ("none", "group", "leave_one_out", "batch", "tag")
STDS = ("none", "group", "batch", "tag")
LEVELS = ("token", "chunk", "sequence")
# Each loss, and which of the fields below it reads.
LOSSES = {
    "vanilla": (),
    "ppo": ("clip_low", "clip_high", "dual_clip"),
    "decoupled_ppo": ("clip_low", "clip_high", "dual_clip", "ratio_cap"),
    "tis": ("ratio_cap",),
    "topr": ("ratio_cap",),
    "cispo": ("clip_low", "clip_high"),
    "kimi": ("tau",),
}
LOSS_FIELDS = ("clip_low", "clip_high", "dual_clip", "ratio_cap", "tau")
MAY_BE_ZERO = ("dual_clip",)  # also where it is read
AGGREGATIONS = ("tokens", "chunks", "trajectories", "trajectory_means", "constant")
KL_ESTIMATORS = ("none", "k1", "k2", "k3")
OLD_LOGP_SOURCES = ("sampler", "generating", "step")


@dataclasses.dataclass(frozen=True)
class AdvantageHypers:
    """How outcomes become advantages, over trajectories, chunks or tokens, as `ESTIMATORS` says.

    estimator: see `ale_jax.algo.advantages`.
    mean: what is subtracted: the mean of the group, of the group's other members, of all in the
        step, or of those of one family of tasks ("tag").
    std: what is divided by: the population's standard deviation of the same.
    failure_reward: added to the outcome of a failure (outcome <= 0). 0, because against the group
        mean a failure costs already, and one that costs in a group of failures is noise.
    anchor_weight: weight of gigpo's step-level part; 0 for the other estimators.
    clip: advantages are cut to +-clip; 0: they are not.
    """

    estimator: str = "outcome"
    mean: str = "group"
    std: str = "none"
    failure_reward: float = 0.0
    anchor_weight: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        require_choice("estimator", self.estimator, tuple(ESTIMATORS))
        require_choice("mean", self.mean, MEANS)
        require_choice("std", self.std, STDS)
        require_range(
            "failure_reward", self.failure_reward, -1e6, 0.0, "a failure is not worth a reward"
        )
        require_range("anchor_weight", self.anchor_weight, 0.0, 1e6, "1 is usual for gigpo")
        require_range("clip", self.clip, 0.0, 1e6, "0 cuts nothing")

    @property
    def of_tokens(self) -> bool:
        """Whether its time steps are tokens: credit is then given on packed batches."""
        return ESTIMATORS[self.estimator] == "tokens"

    @property
    def compares_a_group(self) -> bool:
        return {self.mean, self.std} & {"group", "leave_one_out"} != set()


@dataclasses.dataclass(frozen=True)
class LossHypers:
    """The loss of a step. A loss reads the fields that `LOSSES` names; the others of them must be
    0.

    kind: see `ale_jax.algo.losses`.
    level: unit of the importance ratio: the token, or the geometric mean over its chunk or
        sequence.
    clip_low: the ratio is clipped to 1 - clip_low or more.
    clip_high: the ratio is clipped to 1 + clip_high or less.
    dual_clip: c, the most that a negative advantage may be multiplied by (Ye et al. 2020); 0: off.
    ratio_cap: upper bound of a ratio that is only a weight.
    tau: weight of the squared log-ratio in Kimi's loss.
    negative_weight: factor on advantages below 0, whatever the loss. 1 is all papers'. Most
        chunks of a failed episode were right, so pushing all of them down is noise beside the
        signal; a small policy with few episodes per step learns better with less.
    aggregation: what the sum over tokens is divided by, counted over the whole step: "tokens",
        "chunks", "trajectories", or trajectories times `constant_tokens` ("constant", Dr. GRPO).
        "trajectory_means": trajectories, each of which counts by the mean over its tokens.
    constant_tokens: length that the aggregation "constant" assumes; 0 for the others.
    kl_weight: weight of the divergence from the policy after the warm start; 0: off.
    kl_estimator: how that divergence is estimated.
    entropy_weight: weight of the entropy bonus.
    """

    kind: str = "vanilla"
    level: str = "token"
    clip_low: float = 0.0
    clip_high: float = 0.0
    dual_clip: float = 0.0
    ratio_cap: float = 0.0
    tau: float = 0.0
    negative_weight: float = 1.0
    aggregation: str = "tokens"
    constant_tokens: int = 0
    kl_weight: float = 0.0
    kl_estimator: str = "none"
    entropy_weight: float = 0.0

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, tuple(LOSSES))
        require_choice("level", self.level, LEVELS)
        require_choice("aggregation", self.aggregation, AGGREGATIONS)
        require_choice("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        require_range("clip_low", self.clip_low, 0.0, 1.0, "a ratio is never negative")
        for name, usual in (("clip_high", 0.2), ("ratio_cap", 1.0), ("tau", 0.1)):
            require_range(name, getattr(self, name), 0.0, 1e6, f"{usual} is usual")
        require_range("dual_clip", self.dual_clip, 0.0, 1e6, "3 is usual, 0 switches it off")
        require_range(
            "negative_weight", self.negative_weight, 0.0, 1.0, "0 learns from successes alone"
        )
        require_range("constant_tokens", self.constant_tokens, 0, 1 << 30, "a trajectory's limit")
        require_range("kl_weight", self.kl_weight, 0.0, 1e6, "0 switches it off")
        require_range("entropy_weight", self.entropy_weight, 0.0, 1e6, "0 switches it off")
        for name in LOSS_FIELDS:
            self._require_read(name)

    def _require_read(self, name: str) -> None:
        value, read = getattr(self, name), name in LOSSES[self.kind]
        if value and not read:
            raise ValueError(f"{name} {value} is not read by the loss {self.kind}: set it to 0.0")
        if read and not value and name not in MAY_BE_ZERO:
            raise ValueError(f"{name} 0.0 makes the loss {self.kind} meaningless: set it above 0")


@dataclasses.dataclass(frozen=True)
class MismatchHypers:
    """What is done about learner and sampler being two programs, by pi_old / mu.

    weight_level: the loss of each token is multiplied by the ratio of its token, chunk or sequence;
        "none": by nothing.
    weight_cap: the most that it is multiplied by.
    filter_level: tokens whose token, chunk or sequence has a ratio outside [filter_low,
        filter_high] have no part in the step; "none": all have.
    filter_low: lower end of that range; 0 is one-sided, as the paper has it.
    filter_high: its upper end. For engines that share one model function a ratio of 1 is expected,
        and 1.2 a fault.
    """

    weight_level: str = "none"
    weight_cap: float = 0.0
    filter_level: str = "none"
    filter_low: float = 0.0
    filter_high: float = 0.0

    def __post_init__(self) -> None:
        require_choice("weight_level", self.weight_level, ("none", *LEVELS))
        require_choice("filter_level", self.filter_level, ("none", *LEVELS))
        require_range("filter_low", self.filter_low, 0.0, 1.0, "engines that agree have 1")
        for level, name in (("weight_level", "weight_cap"), ("filter_level", "filter_high")):
            value = getattr(self, name)
            if getattr(self, level) != "none":
                require_range(name, value, 1.0, 1e6, "engines that agree have 1")
            elif value:
                raise ValueError(f"{name} {value} is not read: set it to 0.0, or choose a {level}")
        if self.filter_low and self.filter_level == "none":
            raise ValueError(f"filter_low {self.filter_low} is not read: set it to 0.0")

    @property
    def is_off(self) -> bool:
        return self.weight_level == self.filter_level == "none"


@dataclasses.dataclass(frozen=True)
class AlgoConfig:
    """The policy-gradient algorithm.

    name: what reports call the algorithm.
    gamma: discount per chunk, or per token where tokens are the time steps.
    old_logp: where pi_old comes from (docs/pi_old.md): "sampler", as the engine recorded it with
        each token; "generating", the learner's forward with the weights that wrote the token;
        "step", the learner's forward with the weights that the step starts from.
    """

    name: str = "plain"
    gamma: float = 1.0
    old_logp: str = "sampler"
    advantage: AdvantageHypers = dataclasses.field(default_factory=AdvantageHypers)
    loss: LossHypers = dataclasses.field(default_factory=LossHypers)
    mismatch: MismatchHypers = dataclasses.field(default_factory=MismatchHypers)

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"gamma {self.gamma} must be in (0, 1]: 1.0 means no discount")
        require_choice("old_logp", self.old_logp, OLD_LOGP_SOURCES)
        for refusal in REFUSALS:
            if refusal.meets(self):
                raise ValueError(refusal.why.format(algo=self, a=self.advantage, l=self.loss))

    @property
    def teaches_without_credit(self) -> bool:
        """Whether a trajectory whose advantages are all 0 has a gradient."""
        return self.loss.kl_weight > 0 or self.loss.entropy_weight > 0 or self.loss.kind == "kimi"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A combination that means nothing. why: with the remedy; {algo}, {a}dvantage, {l}oss."""

    name: str
    meets: Callable[[AlgoConfig], bool]
    why: str


REFUSALS = (
    Refusal(
        "an outcome is not discounted",
        lambda c: c.advantage.estimator == "outcome" and c.gamma != 1.0,
        "gamma {algo.gamma} is not read by the estimator outcome, which gives all chunks the "
        "same: set it to 1.0, or estimator to chunk_return",
    ),
    Refusal(
        "one trajectory is left out, not one chunk or token",
        lambda c: (
            c.advantage.mean == "leave_one_out"
            and ESTIMATORS[c.advantage.estimator] != "trajectories"
        ),
        "advantage.mean leave_one_out leaves out one trajectory, but the estimator {a.estimator} "
        "takes its mean over smaller units: choose group",
    ),
    Refusal(
        "gigpo compares within groups",
        lambda c: (
            c.advantage.estimator == "gigpo"
            and (c.advantage.mean != "group" or c.advantage.std not in ("none", "group"))
        ),
        "advantage.mean {a.mean} and std {a.std} are not gigpo's, which compares a group's "
        "members: set mean to group, and std to group or none",
    ),
    Refusal(
        "gigpo without anchors is grpo",
        lambda c: c.advantage.estimator == "gigpo" and not c.advantage.anchor_weight,
        "advantage.anchor_weight 0.0 leaves of gigpo what the estimator outcome gives: choose "
        "that, or a weight above 0",
    ),
    Refusal(
        "only gigpo has anchors",
        lambda c: c.advantage.estimator != "gigpo" and c.advantage.anchor_weight > 0,
        "advantage.anchor_weight {a.anchor_weight} is not read by the estimator {a.estimator}: "
        "set it to 0.0",
    ),
    Refusal(
        "vanilla has no ratio",
        lambda c: c.loss.kind == "vanilla" and c.loss.level != "token",
        "loss.level {l.level} is of a ratio, and the loss vanilla has none: set it to token",
    ),
    Refusal(
        "nobody reads pi_old",
        lambda c: (
            c.loss.kind == "vanilla" and c.mismatch.is_off and c.old_logp in ("generating", "step")
        ),
        "old_logp {algo.old_logp} costs a forward pass that nobody reads: the loss vanilla has no "
        "ratio, and mismatch is off: set it to sampler",
    ),
    Refusal(
        "decoupled PPO needs two old policies",
        lambda c: c.loss.kind == "decoupled_ppo" and c.old_logp == "step",
        "old_logp step makes the behaviour policy of decoupled_ppo the proximal one, and their "
        "ratio 1: set it to generating or sampler, or loss.kind to ppo",
    ),
    Refusal(
        "a dual clip below 1",
        lambda c: 0.0 < c.loss.dual_clip < 1.0,
        "loss.dual_clip {l.dual_clip} would bound what lies inside the trust region: set it above "
        "1, 3 is usual, or to 0.0",
    ),
    Refusal(
        "a constant length without its length",
        lambda c: (c.loss.aggregation == "constant") != (c.loss.constant_tokens > 0),
        "loss.aggregation {l.aggregation} and constant_tokens {l.constant_tokens} do not fit: "
        "constant needs a number of tokens, and the others have none",
    ),
    Refusal(
        "a divergence without weight",
        lambda c: (c.loss.kl_estimator != "none") != (c.loss.kl_weight > 0),
        "loss.kl_weight {l.kl_weight} and kl_estimator {l.kl_estimator} do not fit: set both, or "
        "0.0 and none",
    ),
    Refusal(
        "k1 has no gradient",
        lambda c: c.loss.kl_estimator == "k1",
        "loss.kl_estimator k1 pulls nowhere: the mean of its gradient is 0 whatever the reference "
        "is: choose k2 or k3",
    ),
)
