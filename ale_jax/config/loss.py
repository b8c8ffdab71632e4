"""The loss of a step, and the divergence from the reference."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

LEVELS = ("token", "chunk", "sequence")
# Loss -> which of LOSS_FIELDS it reads.
LOSSES = {
    "none": (),
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
OF_DISTRIBUTIONS = ("reverse", "forward")  # the divergences that are not of the sampled token
KL_ESTIMATORS = ("none", "k1", "k2", "k3", WEIGHTED, *OF_DISTRIBUTIONS)


@dataclasses.dataclass(frozen=True)
class LossHypers(Settings):
    """The loss of a step. `LOSSES` lists which of `LOSS_FIELDS` each loss reads; the fields that it
    does not read must be 0.
    """

    kind: str = setting(
        "vanilla",
        'see `ale_jax.algo.losses`; "none": advantages are not learned from, only the terms below.',
        choices=tuple(LOSSES),
    )
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
        "weight of the KL divergence from the reference: the teacher, or without one the policy "
        "after the warm start; 0: off.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    kl_estimator: str = setting(
        "none",
        "how that divergence is estimated, mostly from a sampled token, with d = log pi - log ref. "
        "k2 pulls "
        "its log-probability down by d. k3 pulls by 1 - exp(-d), which is -12.5 at d = -2.6, and 0 "
        "below -2.61, where k3 is cut off at 10. k3_weighted (DeepSeek-V3.2) pulls by d times the "
        "token's weight pi / pi_old, has no such edge, and is unbiased on stale tokens, too. "
        "reverse is KL(pi || ref) and forward KL(ref || pi) of whole distributions, as far as "
        "kl_top tells them.",
        choices=KL_ESTIMATORS,
    )
    kl_top: int = setting(
        0,
        "how many of the reference's most probable tokens reverse and forward compare, in each "
        "place, one by one; all others count as one more. 0 with other estimators.",
        at_least=0,
        at_most=1024,
        remedy="64 is usual",
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
