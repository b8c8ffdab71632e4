"""The experiments: a question, a config, and the arms that are compared with the same budget.

An arm is the experiment's config with a preset of configs/algorithms.py and overrides. Everything
else is the same in all arms, including the initial weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

FOLDER = "configs/experiments"

# The oracle is the teacher, because with this many tasks few are repeated often enough for experts
# from the policy's own successes. With fewer tasks the policy memorizes them (8 of each family:
# 89 % success on those, 35 % on unseen ones).
RESAMPLED = {
    "resampling.scheme": "parallel",
    "resampling.teacher": "oracle",
    "worlds.tasks_per_family": 64,
}
# A short window, so that only the latest outcomes of a start decide.
VAULTS = {
    "worlds.tasks_per_family": 64,
    "resampling.teacher": "oracle",
    "resampling.window": 8,
}
NO_IMITATION = {"resampling.imitation_weight": 0.0}
ROLLBACK = {"resampling.scheme": "rollback"}
PARALLEL = {"resampling.scheme": "parallel", "resampling.anchor_choice": "random"}
ADAPTIVE = {
    "resampling.scheme": "adaptive",
    "resampling.window": 64,  # of a family, which has many more outcomes than a task
    "resampling.imitates_at_start": True,
    "resampling.imitation_fades": True,
}
# The learning rate falls by an event, and not from the first step on.
AFTER_SUCCESS = {"rl_optimizer.decay_success": 0.5}
MANY_TASKS = {"eval.tasks": 960}


@dataclasses.dataclass(frozen=True)
class Arm:
    """algorithm: a preset. overrides: by the dotted name of the config's field."""

    name: str
    algorithm: str
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """config: a file in FOLDER. start: the config whose warm start gives the initial weights of all
    arms. reference: the arm that the others are compared with, seed by seed; empty: the first.
    rivals: further arms that they are compared with. statistic: what of a run is compared, "area"
    or "final" (see DEFINITIONS in figures.py); where arms train from different starts, only the
    final success has one meaning."""

    name: str
    question: str
    config: str
    start: str
    arms: tuple[Arm, ...]
    reference: str = ""
    rivals: tuple[str, ...] = ()
    statistic: str = "area"

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        assert len(set(names)) == len(names), names
        if not self.reference:
            object.__setattr__(self, "reference", names[0])
        assert {self.reference, *self.rivals} <= set(names), (self.reference, self.rivals)

    def arm(self, name: str) -> Arm:
        """ValueError if there is no arm of that name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ValueError(
            f"experiment {self.name} has no arm {name!r}: "
            f"choose one of {', '.join(arm.name for arm in self.arms)}"
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
    statistic="final",
)

VAULT = Experiment(
    "vault",
    "How often resampling arrives, if the learning rate falls after success only",
    "vault",
    "vault",
    (
        Arm("rollback", "ipa", VAULTS | ROLLBACK | AFTER_SUCCESS),
        Arm("parallel", "ipa", VAULTS | PARALLEL | AFTER_SUCCESS),
        # While no episode starts at the beginning, the first command may be forgotten. Eq 10 does
        # not show it again to groups that start there.
        Arm(
            "rollback_imitates_at_start",
            "ipa",
            VAULTS | ROLLBACK | AFTER_SUCCESS | {"resampling.imitates_at_start": True},
        ),
        Arm("adaptive", "ipa", VAULTS | ADAPTIVE | AFTER_SUCCESS),
    ),
    statistic="final",
)

STARTS = Experiment(
    "starts",
    "What resampling costs where sampling from the start finds successes",
    "shell",
    "shell",
    (
        Arm("from_the_start", "ipa", RESAMPLED | MANY_TASKS | {"resampling.scheme": "none"}),
        Arm("adaptive", "ipa", RESAMPLED | MANY_TASKS | ADAPTIVE),
    ),
    statistic="final",
)

ATTENTION_CREDIT = Experiment(
    "attention_credit",
    "Attention credit on Countdown, against GRPO alone and a control with random tokens",
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

# On two cores, rollouts are no faster than training. Without fill_queue, few ages are above 1.
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

# Episodes are eight versions old, and three of 16 rooms decide (configs/experiments/corridor.py).
CORRIDOR_ARMS = (
    "ipa",
    "ipa_balanced",
    "topr",
    "tis",
    "grpo",
    "ppo",
    "turn_ppo",
    "turn_topr",
    "blended_topr",
)


# With one update a step, critics explain next to nothing until the run ends.
SIXTEEN_UPDATES = {
    "critics.epochs": 2,
    "critics.minibatches": 8,
}


def _corridor(place: str, question: str) -> Experiment:
    arms = tuple(Arm(name, f"{place}_{name}", MANY_TASKS) for name in CORRIDOR_ARMS)
    arms += tuple(
        Arm(f"{name}_16", f"{place}_{name}", MANY_TASKS | SIXTEEN_UPDATES)
        for name in ("ppo", "turn_topr", "blended_topr")
    )
    return Experiment(
        place, question, "corridor", "corridor", arms, reference="grpo", rivals=("ppo",)
    )


LATE = _corridor("late", "Which credit learns fastest where the last chunks decide?")
EARLY = _corridor("early", "Which credit learns fastest where the first chunks decide?")

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each
    for each in (
        ALGORITHMS,
        FAILURES,
        ABLATION,
        LONG_HORIZON,
        VAULT,
        STARTS,
        ATTENTION_CREDIT,
        STALENESS,
        LATE,
        EARLY,
    )
}
