"""How weights are updated."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class OptimizerHypers(Settings):
    """An optimizer and its schedule. Learning rates are the product of a linear warmup over
    warmup_steps and a linear decay to a tenth over decay_steps.
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
    warmup_steps: int = setting(
        0,
        "number of updates over which rates rise; 0: no warmup.",
        at_least=0,
        remedy="0 is off",
    )
    decay_steps: int = setting(
        0,
        "number of updates over which rates decay; 0: no decay.",
        at_least=0,
        remedy="0 is off",
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
        if self.decay_success and not self.decay_steps:
            raise ValueError(
                f"decay_success {self.decay_success} begins no decay without decay_steps: set both"
            )
