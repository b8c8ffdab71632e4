"""The experiments as data: a question, a config, and the arms that are compared under one budget.

An arm is the experiment's config with a preset of configs/algorithms.py, and overrides. What an arm
does not name is the same in all of them, the weights that they start from included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

FOLDER = "configs/experiments"

# The oracle teaches, since of so many tasks few would come back for the policy's own successes;
# fewer are learned by heart (8 of each family: 89 % of those, 35 % of unseen ones).
RESAMPLED = {
    "resampling.scheme": "parallel",
    "resampling.teacher": "oracle",
    "worlds.tasks_per_family": 64,
}
# Of a start the latest outcomes alone decide.
VAULTS = {
    "worlds.tasks_per_family": 64,
    "resampling.teacher": "oracle",
    "resampling.window": 8,
}
NO_IMITATION = {"resampling.imitation_weight": 0.0}
ROLLBACK = {"resampling.scheme": "rollback"}
PARALLEL = {"resampling.scheme": "parallel", "resampling.anchor_choice": "random"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """algorithm: a preset. overrides: by the dotted name of the config's field."""

    name: str
    algorithm: str
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """config: a file of FOLDER. start: the one whose weights after the warm start all arms begin
    with."""

    name: str
    question: str
    config: str
    start: str
    arms: tuple[Arm, ...]

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        assert len(set(names)) == len(names), names

    def arm(self, name: str) -> Arm:
        """ValueError if there is no arm of that name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ValueError(
            f"experiment {self.name} has no arm {name!r}: "
            f"choose among {', '.join(arm.name for arm in self.arms)}"
        )


RIVALS = ("ipa", "grpo", "gspo", "topr", "ppo", "asyppo")
ALGORITHMS = Experiment(
    "algorithms",
    "IPA against its rivals on the shell worlds: final success, gradient spikes, collapse",
    "shell",
    "shell",
    tuple(Arm(name, name) for name in RIVALS),
)

FAILURES = Experiment(
    "failures",
    "IPA and its rivals where failures weigh as much as successes, as their papers have it",
    "shell",
    "shell",
    tuple(Arm(name, name, {"algo.loss.negative_weight": 1.0}) for name in RIVALS),
)

ABLATION = Experiment(
    "ablation",
    "Which part of IPA does the work, a part taken out at a time",
    "shell",
    "shell",
    (
        Arm("ipa", "ipa", RESAMPLED),
        Arm("no_discount", "ipa", RESAMPLED | {"algo.gamma": 1.0}),
        Arm("no_chunk_ratio", "ipa", RESAMPLED | {"algo.loss.level": "token"}),
        Arm(
            "no_mask",
            "ipa",
            RESAMPLED | {"algo.mismatch.filter_level": "none", "algo.mismatch.filter_high": 0.0},
        ),
        Arm("no_imitation", "ipa", RESAMPLED | NO_IMITATION),
        Arm("no_resampling", "ipa", RESAMPLED | {"resampling.scheme": "none"}),
    ),
)

LONG_HORIZON = Experiment(
    "long_horizon",
    "A family in which sampling from the start finds no success: with and without resampling",
    "vault",
    "vault",
    (
        Arm("from_the_start", "ipa", VAULTS | {"resampling.scheme": "none"}),
        Arm("sequential_rollback", "ipa", VAULTS | ROLLBACK),
        Arm("rollback_no_imitation", "ipa", VAULTS | ROLLBACK | NO_IMITATION),
        Arm("parallel_initialization", "ipa", VAULTS | PARALLEL),
        Arm("parallel_no_imitation", "ipa", VAULTS | PARALLEL | NO_IMITATION),
    ),
)

ATTENTION_CREDIT = Experiment(
    "attention_credit",
    "Credit by attention on Countdown, against GRPO alone and a control that draws tokens by lot",
    "countdown",
    "countdown",
    tuple(
        Arm(name, "grpo", {"attention_credit.credit": credit})
        for name, credit in (
            ("grpo", "none"),
            ("local", "local"),
            ("global", "global"),
            ("coupled", "coupled"),
            ("random", "random"),
        )
    ),
)

# Two cores play no faster than they learn: unless the queue is filled, few ages are above 1.
STALENESS = Experiment(
    "staleness",
    "What each algorithm loses when trajectories are alpha versions old",
    "shell",
    "shell",
    tuple(
        Arm(
            f"{algorithm}_{alpha}",
            algorithm,
            {"rl.alpha": float(alpha), "rl.fill_queue": True},
        )
        for algorithm in ("ipa", "grpo", "tis", "topr", "decoupled_ppo")
        for alpha in (0, 1, 2, 4, 8)
    ),
)

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each
    for each in (ALGORITHMS, FAILURES, ABLATION, LONG_HORIZON, ATTENTION_CREDIT, STALENESS)
}
