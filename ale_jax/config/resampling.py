"""Where training episodes start, and how the expert of a task is imitated."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

NONE, ROLLBACK, PARALLEL, ADAPTIVE = "none", "rollback", "parallel", "adaptive"
OWN, ORACLE = "own", "oracle"
ANCHOR_CHOICES = ("uniform", "random")
DISCOUNT, DECISIONS = "discount", "decisions"


@dataclasses.dataclass(frozen=True)
class ResamplingHypers(Settings):
    """Where training episodes start. The paper gives none of these numbers."""

    scheme: str = setting(
        "none",
        '"none": at the task\'s beginning. "rollback" (Sequential Rollback): at the expert\'s last '
        'chunk, and one chunk earlier each time a start is mastered. "parallel" (Parallelized '
        'Initialization): at several anchors at once. "adaptive" (not in the paper): at the '
        "beginning as far as outcomes differ there, and else at starts drawn in proportion to P_k "
        "(1 - P_k), with P_k measured over a family.",
        choices=(NONE, ROLLBACK, PARALLEL, ADAPTIVE),
    )
    teacher: str = setting(
        "own",
        '"own": only the policy\'s own successes become experts. "oracle": each task begins with '
        "the oracle's trajectory as its expert, until a success of the policy replaces it.",
        choices=(OWN, ORACLE),
    )
    anchors: int = setting(
        4,
        'for "parallel": the number of consecutive groups that share a task. The first starts at '
        "the task's beginning, each of the others at its own anchor.",
        at_least=1,
    )
    anchor_choice: str = setting(
        "uniform",
        '"uniform": evenly over the expert\'s chunks; "random": drawn anew each time.',
        choices=ANCHOR_CHOICES,
    )
    from_start: float = setting(
        0.25,
        'for "adaptive": the share of groups that start at the task\'s beginning in any case.',
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of the groups",
    )
    threshold: float = setting(
        0.4,
        'for "rollback": a start is mastered if the lower end of the 95 % Wilson interval of its '
        "success rate is at least this. 0.4 is reached by 3 of 3 successes, or 10 of 15.",
        at_least=0.0,
        at_most=0.99,
        remedy="no interval has a lower end of 1",
    )
    window: int = setting(
        32,
        "number of outcomes per (task, start) that an estimate uses, the most recent ones.",
        at_least=1,
    )
    memory: int = setting(
        100,
        "number of versions after which an outcome is ignored, because the policy has changed.",
        at_least=1,
    )
    imitation_weight: float = setting(
        0.1,
        "lambda_IL of Eq 10; 0 switches the term off.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    imitation: str = setting(
        "discount",
        "how the expert's chunks are weighted: by the expert's own discounted return "
        '("discount", Eq 10), or by what each changes of the success rate that was measured over '
        "its family "
        '("decisions", a tree of the forks that are played anyway).',
        choices=(DISCOUNT, DECISIONS),
    )
    imitates_at_start: bool = setting(
        False,
        "whether a group that starts at the task's beginning, without a success, imitates the "
        "expert's first chunk. In Eq 10 only groups that start later imitate, so what is "
        "forgotten at the beginning is never shown again.",
    )
    imitation_fades: bool = setting(
        False,
        'for "adaptive": whether the weight of the expert\'s chunk k is multiplied by 1 - P_k, so '
        "that what is learned is no longer imitated.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.imitation_fades and self.scheme != ADAPTIVE:
            raise ValueError(
                f"imitation_fades True needs the rates that {ADAPTIVE} measures, and scheme is "
                f"{self.scheme}: set it to False"
            )
        self._require_imitation()
        if self.scheme == PARALLEL and self.anchors < 2:
            raise ValueError(
                f"anchors {self.anchors}: the first group starts at the task's beginning, so "
                "parallel needs 2 or more: raise it, or set scheme to none"
            )

    def _require_imitation(self) -> None:
        """ValueError if a field chooses how to imitate, and nothing is imitated."""
        if self.scheme != NONE and self.imitation_weight:
            return
        for name, unused in (
            ("imitation", DISCOUNT),
            ("imitates_at_start", False),
            ("imitation_fades", False),
        ):
            if (found := getattr(self, name)) != unused:
                raise ValueError(
                    f"{name} {found} is not read with scheme {self.scheme} and imitation_weight "
                    f"{self.imitation_weight}, which imitate nothing: set it to {unused}"
                )

    @property
    def wants_oracles(self) -> bool:
        return self.scheme != NONE and self.teacher == ORACLE

    @property
    def groups_per_task(self) -> int:
        """Number of consecutive groups that share a task."""
        return self.anchors if self.scheme == PARALLEL else 1
