"""The tasks of a run: those that are trained on, demonstrated, and evaluated."""

from __future__ import annotations

import dataclasses
import math

from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class WorldsConfig(Settings):
    """The tasks, given by the names of their families.

    Each training family is played equally often. The families of corridors are named after their
    settings (docs/worlds.md).
    """

    train_families: tuple[str, ...] = setting((), "families that are trained on; at least one.")
    held_out_families: tuple[str, ...] = setting((), "families that are only evaluated.")
    tasks_per_family: int = setting(
        0,
        "distinct training tasks of a family, which are repeated in the same order; 0: every task "
        "is new.",
        at_least=0,
    )
    solved_at: tuple[tuple[str, float], ...] = setting(
        (),
        "rewards from which episodes count as solved, each (family, reward), in place of what the "
        "world says, which is 1.0 unless it pays otherwise. Only solved episodes become experts.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_families", "held_out_families"):
            families = getattr(self, name)
            if len(set(families)) < len(families):
                raise ValueError(f"{name} {families} names one twice: each comes up equally often")
        if both := set(self.train_families) & set(self.held_out_families):
            raise ValueError(
                f"{', '.join(sorted(both))} cannot be trained on and held out: name it in one list"
            )
        known, named = (*self.train_families, *self.held_out_families), dict(self.solved_at)
        for family, reward in self.solved_at:
            if family not in known:
                raise ValueError(
                    f"solved_at names {family!r:.80}, which is not played: choose one of {known}"
                )
            if not 0.0 < reward < math.inf or named[family] != reward:
                raise ValueError(
                    f"solved_at of {family!r:.80} is {reward}: give one finite reward above 0"
                )


@dataclasses.dataclass(frozen=True)
class Domain:
    """A named set of task families. ratio: its number of samples in every sum(ratios) samples."""

    name: str
    families: tuple[str, ...]
    ratio: int

    def __post_init__(self) -> None:
        if not self.families:
            raise ValueError(f"domain {self.name!r} has no families: name some")
        if self.ratio < 1:
            raise ValueError(f"ratio {self.ratio} must be at least 1, or leave out the domain")


@dataclasses.dataclass(frozen=True)
class WarmStartConfig(Settings):
    """Supervised training on oracle transcripts. It ends when the policy's estimated success on
    unseen tasks reaches target_success, or after max_steps updates.
    """

    transcripts_per_family: int = setting(256, "demonstrations of each family.", at_least=1)
    rows_per_step: int = setting(
        16, "full rows per update, in microbatches of learn.microbatch_rows.", at_least=1
    )
    max_steps: int = setting(0, "maximum number of updates; 0: no warm start.", at_least=0)
    probe_every: int = setting(
        2,
        "updates between two estimates of the policy's success.",
        at_least=1,
    )
    probe_tasks: int = setting(48, "unseen tasks in each estimate.", at_least=1)
    target_success: float = setting(
        1.0,
        "estimated success rate at which the warm start ends.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a rate",
    )
    domains: tuple[Domain, ...] = setting(
        (),
        "the families that are demonstrated. Each domain has a `name`, its `families` and a "
        "`ratio`, its part of the samples; empty: the training families, in equal parts.",
    )
    noisy_share: float = setting(
        0.0,
        "share of the demonstrations of shell tasks that contain a failing and a repeated call.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share",
    )
    mask_errors: bool = setting(
        False,
        "exclude chunks whose tool call failed from the loss (data/selection.py).",
    )
    mask_repeats: bool = setting(False, "exclude chunks that repeat an earlier one from the loss.")

    def __post_init__(self) -> None:
        super().__post_init__()
        families = [family for domain in self.domains for family in domain.families]
        for family in families:
            if families.count(family) > 1:
                raise ValueError(f"{family} stands in the domains twice: name it in one")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Settings):
    """Evaluation after the warm start and at the end of the run, on tasks of the evaluation split
    that are divided evenly among the families.
    """

    tasks: int = setting(100, "tasks of the training families.", at_least=1)
    held_out_tasks: int = setting(0, "tasks of the held-out families; 0: none.", at_least=0)
    every: int = setting(
        0,
        "RL steps between further evaluations during training; 0: none.",
        at_least=0,
    )
