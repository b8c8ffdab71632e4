"""How a batch is computed: in microbatches of packed rows."""

from __future__ import annotations

import dataclasses

from ale_jax.config.model import Compute
from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class Shape(Settings):
    """The shape of one batch: `microbatch_rows` rows of `pack_length` tokens.

    A row has room for `chunks_per_pack` sampled chunks, and therefore for as many trajectories: a
    trajectory without sampled chunks takes the room of one chunk.
    """

    microbatch_rows: int = setting(8, "rows of a microbatch.", at_least=1)
    pack_length: int = setting(4096, "tokens of a row.", at_least=1)
    chunks_per_pack: int = setting(32, "maximum number of chunks in a row.", at_least=1)


@dataclasses.dataclass(frozen=True)
class LearnConfig(Compute, Shape):
    """How a batch is computed: in microbatches of packed rows, and in one or several updates."""

    minibatches: int = setting(
        1,
        "number of updates that a step's groups are divided among, every n-th group to the same "
        "one; fewer where nothing in a share has a gradient. Advantages are computed before, over "
        "all groups; each update divides by the tokens of its own share.",
        at_least=1,
        at_most=1 << 30,
        remedy="1 is one update per epoch",
    )
    epochs: int = setting(
        1,
        "how often the policy learns from each step's groups. Like minibatches, this makes more "
        "updates of a step. pi_old stays that of the step.",
        at_least=1,
        at_most=1000,
        remedy="1 uses each step's groups once",
    )
    balance_weight: float = setting(
        1e-3,
        "weight of the router's load-balancing loss.",
        at_least=0.0,
        at_most=1e6,
        remedy="0 switches it off",
    )
    max_skipped_updates: int = setting(
        3,
        "consecutive updates that are not finite after which the run ends; of critics, "
        "consecutive steps in which one of them makes only such updates.",
        at_least=1,
    )
