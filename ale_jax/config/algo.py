"""The policy-gradient algorithm.

Advantages, loss and mismatch correction are chosen independently; `ale_jax.config.refusals` lists
the combinations that are rejected. Presets are in `configs/algorithms.py`.
"""

from __future__ import annotations

import dataclasses

from ale_jax.config.credit import CreditHypers
from ale_jax.config.refusals import REFUSALS
from ale_jax.config.setting import Settings, section, setting

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
WEIGHTED = "k3_weighted"  # the estimator of the divergence that is right on stale tokens
KL_ESTIMATORS = ("none", "k1", "k2", "k3", WEIGHTED)
OLD_LOGP_SOURCES = ("sampler", "generating", "step")
AGREED = "engines that agree have a ratio of 1"


@dataclasses.dataclass(frozen=True)
class AdvantageHypers(Settings):
    """How rewards become advantages, per trajectory, chunk or token (see `ESTIMATORS`)."""

    estimator: str = setting("outcome", "see `ale_jax.algo.advantages`.", choices=tuple(ESTIMATORS))
    mean: str = setting(
        "group",
        "the baseline that is subtracted: the mean over the group, over the other members of the "
        'group ("leave_one_out"), over the whole step ("batch") or over one task family ("tag").',
        choices=MEANS,
    )
    std: str = setting(
        "none",
        "the population standard deviation that advantages are divided by, over the group, the "
        'whole step ("batch") or one task family ("tag").',
        choices=STDS,
    )
    centring: str = setting(
        "outcome",
        "what the mean of chunk_return is taken of: the outcomes, subtracted before the discount "
        '("outcome"), or the discounted returns of the chunks with the same index ("chunk") or as '
        'far from the end ("distance"). After the discount, "chunk" has a price on length: of two '
        "successes the shorter one is better. The others compare outcomes only.",
        choices=CENTRINGS,
    )
    failure_reward: float = setting(
        0.0,
        "added to the outcome of a failure (outcome <= 0). The default is 0: the group mean "
        "already makes a failure's advantage negative, and in a group of failures an extra cost "
        "is noise.",
        at_least=-1e6,
        at_most=0.0,
        remedy="a failure must not be rewarded",
    )
    anchor_weight: float = setting(
        0.0,
        "weight of the step-level advantage of gigpo and hgpo; 0 for the other estimators.",
        at_least=0.0,
        at_most=1e6,
        remedy="1 is usual for gigpo",
    )
    anchor_depth: int = setting(
        0,
        "how many of the last observations make a state: with gigpo exactly so many, with hgpo 1 "
        "to this number. 0: all observations so far, in order (gigpo).",
        at_least=0,
        at_most=64,
        remedy="0 is the whole history",
    )
    anchor_exponent: float = setting(
        0.0,
        "hgpo weights states of k observations by k to this power. The paper has 1.",
        at_least=0.0,
        at_most=64.0,
        remedy="1 is usual for hgpo",
    )
    clip: float = setting(
        0.0,
        "advantages are clipped to +-clip; 0: off.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    balance: str = setting(
        "none",
        '"group": the negative advantages of a group are scaled down until they weigh no more '
        "than the positive ones, both summed over policy tokens. A group in which failures are "
        "longer than successes then does not lower the probability of whatever it wrote.",
        choices=BALANCES,
    )

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
class LossHypers(Settings):
    """The loss of a step. `LOSSES` lists which of `LOSS_FIELDS` each loss reads; the fields that it
    does not read must be 0.
    """

    kind: str = setting("vanilla", "see `ale_jax.algo.losses`.", choices=tuple(LOSSES))
    level: str = setting(
        "token",
        "level of the importance ratio: the token's own ratio, or its geometric mean over the "
        "token's chunk or sequence.",
        choices=LEVELS,
    )
    clip_low: float = setting(
        0.0,
        'the ratio is clipped to 1 - clip_low or more. With "topr", for which 0 switches it off, '
        "a token with a negative advantage has no gradient below it.",
        at_least=0.0,
        at_most=1.0,
        remedy="a ratio is never negative",
    )
    clip_high: float = setting(
        0.0,
        'the ratio is clipped to 1 + clip_high or less. With "topr", for which 0 switches it off, '
        "a token with a positive advantage has no gradient above it.",
        at_least=0.0,
        at_most=1e6,
        remedy="0.2 is usual",
    )
    dual_clip: float = setting(
        0.0,
        "c, upper bound of the factor on a negative advantage (Ye et al. 2020); 0: off.",
        at_least=0.0,
        at_most=1e6,
        remedy="3 is usual, 0 switches it off",
    )
    ratio_cap: float = setting(
        0.0,
        "upper bound of a ratio that is only used as a weight.",
        at_least=0.0,
        at_most=1e6,
        remedy="1.0 is usual",
    )
    tau: float = setting(
        0.0,
        "weight of the squared log-ratio in Kimi's loss; steepness of SAPO's gate where the "
        "advantage is positive.",
        at_least=0.0,
        at_most=1e6,
        remedy="0.1 (kimi) or 1.0 (sapo) is usual",
    )
    tau_negative: float = setting(
        0.0,
        "steepness of SAPO's gate elsewhere. Above tau, because a push downwards raises many "
        "tokens that nobody sampled.",
        at_least=0.0,
        at_most=1e6,
        remedy="1.05 is usual",
    )
    negative_weight: float = setting(
        1.0,
        "factor on negative advantages, for every loss; the papers use 1. Most chunks of a failed "
        "episode were correct, so lowering the probability of all of them adds noise. A small "
        "policy with few episodes per step learns better with a smaller factor.",
        at_least=0.0,
        at_most=1.0,
        remedy="0 learns from successes only",
    )
    aggregation: str = setting(
        "tokens",
        'what the sum over tokens is divided by, counted over the whole step: "tokens", "chunks", '
        '"trajectories", or trajectories times `constant_tokens` ("constant", Dr. GRPO). '
        '"chunk_means", "trajectory_means": chunks or trajectories, each of which contributes the '
        "mean over its tokens. A trajectory is what `credit.trajectory` says.",
        choices=AGGREGATIONS,
    )
    constant_tokens: int = setting(
        0,
        'length that the aggregation "constant" assumes; 0 for the others.',
        at_least=0,
        at_most=1 << 30,
        remedy="a trajectory's limit",
    )
    kl_weight: float = setting(
        0.0,
        "weight of the KL divergence from the policy after the warm start; 0: off.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    kl_estimator: str = setting(
        "none",
        "how that divergence is estimated from a sampled token with d = log pi - log ref. k2 pulls "
        "its log-probability down by d. k3 pulls by 1 - exp(-d), which is -12.5 at d = -2.6, and 0 "
        "below -2.61, where k3 is cut off at 10. k3_weighted (DeepSeek-V3.2) pulls by d times the "
        "token's weight pi / pi_old, has no such edge, and is unbiased on stale tokens, too.",
        choices=KL_ESTIMATORS,
    )
    measure_kl: bool = setting(
        False,
        "that divergence is a metric (`kl`) also with the weight 0, where each step has one more "
        "forward pass for it, over all that was sampled, and the reference's weights are kept. A "
        "run that did not keep them from its beginning cannot be resumed with it.",
    )
    entropy_weight: float = setting(
        0.0,
        "weight of the entropy bonus.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    observation_weight: float = setting(
        0.0,
        "weight of the cross entropy on the observations that follow the policy's first chunk "
        "(ECHO); 0: off. What a command will print is learned from failures too.",
        at_least=0.0,
        at_most=1e6,
        remedy="0.05 is usual",
    )

    @property
    def reads_reference(self) -> bool:
        return self.kl_weight > 0 or self.measure_kl

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in LOSS_FIELDS:
            self._require_read(name)

    def _require_read(self, name: str) -> None:
        value, read = getattr(self, name), name in LOSSES[self.kind]
        if value and not read:
            raise ValueError(f"{name} {value} is not read by the loss {self.kind}: set it to 0.0")
        if read and not value and name not in OPTIONAL.get(self.kind, ()):
            raise ValueError(f"{name} 0.0 makes the loss {self.kind} meaningless: set it above 0")


@dataclasses.dataclass(frozen=True)
class MismatchHypers(Settings):
    """Correction by pi_old / mu for the mismatch between learner and sampler, which are separate
    programs.
    """

    weight_level: str = setting(
        "none",
        'each token\'s loss is multiplied by the ratio of its token, chunk or sequence; "none": by '
        "1.",
        choices=("none", *LEVELS),
    )
    weight_cap: float = setting(0.0, "upper bound of that weight.")
    filter_level: str = setting(
        "none",
        "tokens whose token, chunk or sequence has a ratio outside [filter_low, filter_high] are "
        'excluded from the step; "none": no token is.',
        choices=("none", *LEVELS),
    )
    filter_low: float = setting(
        0.0,
        "lower end of that range; 0 makes the filter one-sided, as in the paper.",
        at_least=0.0,
        at_most=1.0,
        remedy=AGREED,
    )
    filter_high: float = setting(
        0.0,
        "upper end of that range. Engines that share one model function should have a ratio of 1, "
        "and a ratio of 1.2 indicates a fault.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for level, name in (("weight_level", "weight_cap"), ("filter_level", "filter_high")):
            value = getattr(self, name)
            if getattr(self, level) != "none":
                if not 1.0 <= value <= 1e6:
                    raise ValueError(f"{name} {value} must be in [1.0, 1000000.0]: {AGREED}")
            elif value:
                raise ValueError(f"{name} {value} is not read: set it to 0.0, or choose a {level}")
        if self.filter_low and self.filter_level == "none":
            raise ValueError(f"filter_low {self.filter_low} is not read: set it to 0.0")

    @property
    def is_off(self) -> bool:
        return self.weight_level == self.filter_level == "none"


@dataclasses.dataclass(frozen=True)
class AlgoConfig(Settings):
    """The policy-gradient algorithm."""

    name: str = setting("plain", "name of the algorithm in reports.")
    gamma: float = setting(
        1.0,
        "discount per chunk, or per token if the estimator works on tokens (`ESTIMATORS`).",
        above=0,
        at_most=1,
        remedy="1.0 means no discount",
    )
    old_logp: str = setting(
        "sampler",
        'where pi_old comes from (docs/pi_old.md): "sampler", recorded by the engine with each '
        'token; "generating", a forward pass of the learner with the weights that generated the '
        'token; "step", a forward pass of the learner with the weights at the start of the step.',
        choices=OLD_LOGP_SOURCES,
    )
    advantage: AdvantageHypers = section(AdvantageHypers)
    loss: LossHypers = section(LossHypers)
    mismatch: MismatchHypers = section(MismatchHypers)
    credit: CreditHypers = section(CreditHypers)

    def __post_init__(self) -> None:
        super().__post_init__()
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
