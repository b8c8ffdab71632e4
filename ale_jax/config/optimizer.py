"""How weights are updated."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class OptimizerHypers(Settings):
    """An optimizer and its schedule. Learning rates rise linearly over the first warmup_ratio of
    all updates, and then fall linearly to a tenth over decay_ratio of those that are left. Shares
    keep their meaning when the run gets another length.
    """

    name: str = setting(
        "adamw",
        '"adamw"; "muon": Muon for weight matrices (momentum orthogonalised by Newton-Schulz) and '
        "NAdamW (AdamW with Nesterov momentum) for embeddings, output head, norms and the router; "
        'or "adafactor": a second moment per row and column instead of per weight, and no first '
        "moment (it reads neither b1 nor b2).",
        choices=("adamw", "adafactor", "muon"),
    )
    learning_rate: float = setting(
        1e-6,
        "peak rate of AdamW, NAdamW and Adafactor. NAdamW's first update of a weight is 1 + b1 / "
        "(1 + b1) times the rate, 1.47 with b1 0.9.",
        above=0,
    )
    muon_learning_rate: float = setting(
        0.02,
        "peak rate of the weights that Muon updates: the spectral norm of an update is about the "
        "rate times sqrt(max(1, outputs / inputs)) of the matrix.",
        above=0,
    )
    warmup_ratio: float = setting(
        0.0,
        "share of all updates over which rates rise; 0: no warmup. All are rl.steps times epochs "
        "times minibatches or, of the warm start, max_steps.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of the updates, 0 is off",
    )
    decay_ratio: float = setting(
        0.0,
        "share of the updates after the warmup over which rates fall; 1: until the end, 0: no "
        "decay.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of the updates, 0 is off",
    )
    decay_success: float = setting(
        0.0,
        "rates begin to decay when this share of the latest training episodes from the beginning "
        "of their task has succeeded; 0: with the first update. For rl_optimizer.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of episodes",
    )
    b1: float = setting(0.9, "decay of the first moment.")
    b2: float = setting(0.95, "decay of the second moment.")
    weight_decay: float = setting(0.0, "decoupled weight decay, multiplied by the rate.")
    clip_norm: float = setting(1.0, "bound on the gradient's global norm.", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_success and not self.decay_ratio:
            raise ValueError(
                f"decay_success {self.decay_success} begins no decay without decay_ratio: set both"
            )

    def schedule(self, updates: int) -> tuple[int, int]:
        """Returns over how many of a run's `updates` rates rise, and over how many they fall.

        >>> OptimizerHypers(warmup_ratio=0.03, decay_ratio=1.0).schedule(170)
        (5, 165)
        """
        warmup = round(self.warmup_ratio * updates)
        return warmup, round(self.decay_ratio * (updates - warmup))
