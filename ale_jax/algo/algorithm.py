"""The hyperparameters of a policy-gradient algorithm, as frozen records.

Advantages, loss and mismatch correction are chosen independently; `ale_jax.algo.refusals` lists the
combinations that are rejected. Presets are in `configs/algorithms.py`.
"""

from __future__ import annotations

import dataclasses

from ale_jax.algo.hypers import require_choice, require_range
from ale_jax.algo.refusals import REFUSALS

# Estimator -> the units over which its mean and std are computed.
ESTIMATORS = {
    "chunk_return": "trajectories",
    "outcome": "trajectories",
    "gigpo": "trajectories",
    "hgpo": "trajectories",
    "tree": "trajectories",
    "step": "chunks",
    "token_return": "tokens",
    "gae": "tokens",
    "turn_gae": "chunks",
    "blended_turn_gae": "chunks",
}
FROM_CRITICS = ("gae", "turn_gae", "blended_turn_gae")  # the estimators that need values
MEANS = ("none", "group", "leave_one_out", "batch", "tag")
STDS = ("none", "group", "batch", "tag")
CENTRINGS = ("outcome", "chunk", "distance")
BALANCES = ("none", "group")
LEVELS = ("token", "chunk", "sequence")
# Loss -> which of LOSS_FIELDS it reads.
LOSSES = {
    "vanilla": (),
    "ppo": ("clip_low", "clip_high", "dual_clip"),
    "decoupled_ppo": ("clip_low", "clip_high", "dual_clip", "ratio_cap"),
    "tis": ("ratio_cap",),
    "topr": ("ratio_cap", "clip_low", "clip_high"),
    "cispo": ("clip_low", "clip_high"),
    "kimi": ("tau",),
    "sapo": ("tau", "tau_negative"),
}
LOSS_FIELDS = ("clip_low", "clip_high", "dual_clip", "ratio_cap", "tau", "tau_negative")
# Loss -> which of the fields that it reads may be 0, and switch something off.
OPTIONAL = {
    "ppo": ("dual_clip",),
    "decoupled_ppo": ("dual_clip",),
    "topr": ("clip_low", "clip_high"),
}
AGGREGATIONS = (
    "tokens",
    "chunks",
    "chunk_means",
    "trajectories",
    "trajectory_means",
    "constant",
)
KL_ESTIMATORS = ("none", "k1", "k2", "k3")
OLD_LOGP_SOURCES = ("sampler", "generating", "step")


@dataclasses.dataclass(frozen=True)
class AdvantageHypers:
    """How rewards become advantages, per trajectory, chunk or token (see `ESTIMATORS`).

    estimator: see `ale_jax.algo.advantages`.
    mean: the baseline that is subtracted: the mean over the group, over the other members of the
        group ("leave_one_out"), over the whole step ("batch") or over one task family ("tag").
    std: the population standard deviation that advantages are divided by, over the group, the
        whole step ("batch") or one task family ("tag").
    centring: what the mean of chunk_return is taken of: the outcomes, subtracted before the
        discount ("outcome"), or the discounted returns of the chunks with the same index ("chunk")
        or as far from the end ("distance"). After the discount, "chunk" has a price on length: of
        two successes the shorter one is better. The others compare outcomes only.
    failure_reward: added to the outcome of a failure (outcome <= 0). The default is 0: the group
        mean already makes a failure's advantage negative, and in a group of failures an extra cost
        is noise.
    anchor_weight: weight of the step-level advantage of gigpo and hgpo; 0 for the other estimators.
    anchor_depth: how many of the last observations make a state: with gigpo exactly so many, with
        hgpo 1 to this number. 0: all observations so far, in order (gigpo).
    anchor_exponent: hgpo weights states of k observations by k to this power. The paper has 1.
    clip: advantages are clipped to +-clip; 0: off.
    balance: "group": the negative advantages of a group are scaled down until they weigh no more
        than the positive ones, both summed over policy tokens. A group in which failures are longer
        than successes then does not lower the probability of whatever it wrote.
    """

    estimator: str = "outcome"
    mean: str = "group"
    std: str = "none"
    centring: str = "outcome"
    failure_reward: float = 0.0
    anchor_weight: float = 0.0
    anchor_depth: int = 0
    anchor_exponent: float = 0.0
    clip: float = 0.0
    balance: str = "none"

    def __post_init__(self) -> None:
        require_choice("estimator", self.estimator, tuple(ESTIMATORS))
        require_choice("mean", self.mean, MEANS)
        require_choice("std", self.std, STDS)
        require_choice("centring", self.centring, CENTRINGS)
        require_range(
            "failure_reward", self.failure_reward, -1e6, 0.0, "a failure must not be rewarded"
        )
        require_range("anchor_weight", self.anchor_weight, 0.0, 1e6, "1 is usual for gigpo")
        require_range("anchor_depth", self.anchor_depth, 0, 64, "0 is the whole history")
        require_range("anchor_exponent", self.anchor_exponent, 0.0, 64.0, "1 is usual for hgpo")
        require_range("clip", self.clip, 0.0, 1e6, "0 switches it off")
        require_choice("balance", self.balance, BALANCES)

    @property
    def units(self) -> str:
        """What the estimator compares: "trajectories", "chunks" or "tokens"."""
        return ESTIMATORS[self.estimator]

    @property
    def of_tokens(self) -> bool:
        """Whether credit is computed on packed batches, for their tokens."""
        return self.units == "tokens" or self.from_critics

    @property
    def from_critics(self) -> bool:
        return self.estimator in FROM_CRITICS

    @property
    def steps_are_chunks(self) -> bool:
        """Whether the time steps of values and token credit are chunks, and not tokens."""
        return self.from_critics and self.units == "chunks"

    @property
    def blends(self) -> bool:
        """Whether lambda counts only as far as the critics know outcomes (`values.blend`)."""
        return self.estimator == "blended_turn_gae"

    @property
    def compares_a_group(self) -> bool:
        return {self.mean, self.std} & {"group", "leave_one_out"} != set()

    @property
    def compares_only_outcomes(self) -> bool:
        """Whether nothing has credit where all members of a group have the same outcome."""
        return self.estimator in ("chunk_return", "outcome", "tree") and self.centring != "chunk"


@dataclasses.dataclass(frozen=True)
class LossHypers:
    """The loss of a step. `LOSSES` lists which of `LOSS_FIELDS` each loss reads; the fields that it
    does not read must be 0.

    kind: see `ale_jax.algo.losses`.
    level: level of the importance ratio: the token's own ratio, or its geometric mean over the
        token's chunk or sequence.
    clip_low: the ratio is clipped to 1 - clip_low or more. With "topr", for which 0 switches it
        off, a token with a negative advantage has no gradient below it.
    clip_high: the ratio is clipped to 1 + clip_high or less. With "topr", for which 0 switches it
        off, a token with a positive advantage has no gradient above it.
    dual_clip: c, upper bound of the factor on a negative advantage (Ye et al. 2020); 0: off.
    ratio_cap: upper bound of a ratio that is only used as a weight.
    tau: weight of the squared log-ratio in Kimi's loss; steepness of SAPO's gate where the
        advantage is positive.
    tau_negative: steepness of SAPO's gate elsewhere. Above tau, because a push downwards raises
        many tokens that nobody sampled.
    negative_weight: factor on negative advantages, for every loss; the papers use 1. Most chunks of
        a failed episode were correct, so lowering the probability of all of them adds noise. A
        small policy with few episodes per step learns better with a smaller factor.
    aggregation: what the sum over tokens is divided by, counted over the whole step: "tokens",
        "chunks", "trajectories", or trajectories times `constant_tokens` ("constant", Dr. GRPO).
        "chunk_means", "trajectory_means": chunks or trajectories, each of which contributes the
        mean over its tokens. Each conversation of an agent's program (`external_agent.branches`)
        is a trajectory here.
    constant_tokens: length that the aggregation "constant" assumes; 0 for the others.
    kl_weight: weight of the KL divergence from the policy after the warm start; 0: off.
    kl_estimator: how that divergence is estimated.
    entropy_weight: weight of the entropy bonus.
    observation_weight: weight of the cross entropy on the observations that follow the policy's
        first chunk (ECHO); 0: off. What a command will print is learned from failures too.
    """

    kind: str = "vanilla"
    level: str = "token"
    clip_low: float = 0.0
    clip_high: float = 0.0
    dual_clip: float = 0.0
    ratio_cap: float = 0.0
    tau: float = 0.0
    tau_negative: float = 0.0
    negative_weight: float = 1.0
    aggregation: str = "tokens"
    constant_tokens: int = 0
    kl_weight: float = 0.0
    kl_estimator: str = "none"
    entropy_weight: float = 0.0
    observation_weight: float = 0.0

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, tuple(LOSSES))
        require_choice("level", self.level, LEVELS)
        require_choice("aggregation", self.aggregation, AGGREGATIONS)
        require_choice("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        require_range("clip_low", self.clip_low, 0.0, 1.0, "a ratio is never negative")
        for name, usual in (
            ("clip_high", "0.2"),
            ("ratio_cap", "1.0"),
            ("tau", "0.1 (kimi) or 1.0 (sapo)"),
            ("tau_negative", "1.05"),
        ):
            require_range(name, getattr(self, name), 0.0, 1e6, f"{usual} is usual")
        require_range("dual_clip", self.dual_clip, 0.0, 1e6, "3 is usual, 0 switches it off")
        require_range(
            "negative_weight", self.negative_weight, 0.0, 1.0, "0 learns from successes only"
        )
        require_range("constant_tokens", self.constant_tokens, 0, 1 << 30, "a trajectory's limit")
        require_range("kl_weight", self.kl_weight, 0.0, 1e6, "0 switches it off")
        require_range("entropy_weight", self.entropy_weight, 0.0, 1e6, "0 switches it off")
        require_range("observation_weight", self.observation_weight, 0.0, 1e6, "0.05 is usual")
        for name in LOSS_FIELDS:
            self._require_read(name)

    def _require_read(self, name: str) -> None:
        value, read = getattr(self, name), name in LOSSES[self.kind]
        if value and not read:
            raise ValueError(f"{name} {value} is not read by the loss {self.kind}: set it to 0.0")
        if read and not value and name not in OPTIONAL.get(self.kind, ()):
            raise ValueError(f"{name} 0.0 makes the loss {self.kind} meaningless: set it above 0")


@dataclasses.dataclass(frozen=True)
class MismatchHypers:
    """Correction by pi_old / mu for the mismatch between learner and sampler, which are separate
    programs.

    weight_level: each token's loss is multiplied by the ratio of its token, chunk or sequence;
        "none": by 1.
    weight_cap: upper bound of that weight.
    filter_level: tokens whose token, chunk or sequence has a ratio outside [filter_low,
        filter_high] are excluded from the step; "none": no token is.
    filter_low: lower end of that range; 0 makes the filter one-sided, as in the paper.
    filter_high: upper end of that range. Engines that share one model function should have a ratio
        of 1, and a ratio of 1.2 indicates a fault.
    """

    weight_level: str = "none"
    weight_cap: float = 0.0
    filter_level: str = "none"
    filter_low: float = 0.0
    filter_high: float = 0.0

    def __post_init__(self) -> None:
        require_choice("weight_level", self.weight_level, ("none", *LEVELS))
        require_choice("filter_level", self.filter_level, ("none", *LEVELS))
        require_range(
            "filter_low", self.filter_low, 0.0, 1.0, "engines that agree have a ratio of 1"
        )
        for level, name in (("weight_level", "weight_cap"), ("filter_level", "filter_high")):
            value = getattr(self, name)
            if getattr(self, level) != "none":
                require_range(name, value, 1.0, 1e6, "engines that agree have a ratio of 1")
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

    name: name of the algorithm in reports.
    gamma: discount per chunk, or per token if the estimator works on tokens (`ESTIMATORS`).
    old_logp: where pi_old comes from (docs/pi_old.md): "sampler", recorded by the engine with each
        token; "generating", a forward pass of the learner with the weights that generated the
        token; "step", a forward pass of the learner with the weights at the start of the step.
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
        """Whether `policy_loss` has a gradient on a trajectory whose advantages are all 0.

        The router's balancing loss does not count: it would have one on every trajectory, but a
        mixture of experts is balanced on those that are computed anyway.
        """
        loss = self.loss
        weights = loss.kl_weight, loss.entropy_weight, loss.observation_weight
        return any(weight > 0 for weight in weights) or loss.kind == "kimi"
