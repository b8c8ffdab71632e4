"""The policy-gradient algorithm.

Advantages, loss and mismatch correction are chosen independently; `ale_jax.config.refusals` lists
the combinations that are rejected. Presets are in `configs/algorithms.py`.
"""

from __future__ import annotations

import dataclasses

from ale_jax.config.credit import CreditHypers
from ale_jax.config.loss import LEVELS, LossHypers
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
