"""The critics."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import ModelConfig
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.config.setting import Settings, section, setting

SIZES = ("width", "num_layers", "num_heads", "num_kv_heads", "head_width", "mlp_width")


@dataclasses.dataclass(frozen=True)
class CriticsHypers(Settings):
    """The critics. They are dense models, unless they have the policy's own shape."""

    count: int = setting(
        0,
        "number of critics. 0: none, and the other fields are not read. 1 with both shares 0 is "
        "plain PPO.",
        at_least=0,
        at_most=64,
        remedy="2 is usual, 1 for PPO, 0 for none",
    )
    width: int = setting(
        0,
        "numbers per token of the residual stream. If it and the five sizes below are 0, critics "
        "have the policy's own shape, experts included, and start from its weights.",
        at_least=0,
    )
    num_layers: int = setting(0, "decoder layers.", at_least=0)
    num_heads: int = setting(0, "query heads.", at_least=0)
    num_kv_heads: int = setting(0, "heads of keys and values.", at_least=0)
    head_width: int = setting(0, "numbers per head.", at_least=0)
    mlp_width: int = setting(0, "inner width of the feed-forward.", at_least=0)
    lam: float = setting(
        1.0,
        "lambda of GAE, per token or, where chunks are the time steps, per chunk.",
        at_least=0.0,
        at_most=1.0,
        remedy="1 trusts the rewards alone, 0 the critics",
    )
    mask_share: float = setting(
        0.0,
        "share of a step's policy tokens or, where chunks are the time steps, of its chunks whose "
        "advantage is set to 0: those on which the critics agree most.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of the time steps",
    )
    entropy_share: float = setting(
        0.0,
        "share of them that gets no entropy bonus: those on which the critics differ most.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share of the time steps",
    )
    warmup_steps: int = setting(
        0,
        "number of steps, of epochs x minibatches updates each, at the beginning in which only "
        "the critics learn.",
        at_least=0,
        at_most=1 << 30,
        remedy="0 starts all at once",
    )
    epochs: int = setting(
        1,
        "how often the critics learn from each step's episodes. Like minibatches, this makes more "
        "updates of a step, of which the optimizer's warmup_ratio and decay_ratio are shares.",
        at_least=1,
        at_most=1000,
        remedy="1 uses each step's episodes once",
    )
    minibatches: int = setting(
        1,
        "number of updates in an epoch, every n-th group of the step to the same one; fewer where "
        "a share has nothing to learn from, and then warmup_steps last longer.",
        at_least=1,
        at_most=1 << 30,
        remedy="1 is one update per epoch",
    )
    optimizer: OptimizerHypers = section(OptimizerHypers, learning_rate=1e-5)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = [getattr(self, name) for name in SIZES]
        if not (all(size > 0 for size in sizes) or not any(sizes)):
            raise ValueError(
                f"{', '.join(SIZES)} are {sizes}: all must be at least 1, or all 0 for critics of "
                "the policy's own shape"
            )
        for name in ("mask_share", "entropy_share"):
            if getattr(self, name) > 0 and self.count < 2:
                raise ValueError(
                    f"{name} {getattr(self, name)} needs critics that can differ: set count to 2 "
                    f"or more, or {name} to 0.0"
                )

    def check_group(self, group_size: int) -> None:
        """Raises ValueError unless a prompt's responses can be divided evenly among the critics."""
        if self.count and group_size % self.count:
            raise ValueError(
                f"rl.group_size {group_size} cannot be divided evenly among {self.count} critics: "
                f"set it to {-(-group_size // self.count) * self.count}, or change critics.count"
            )

    def shape(self, policy: PolicyShape) -> PolicyShape:
        """Returns the shape of each critic."""
        if not self.width:
            return policy
        sizes = {name: getattr(self, name) for name in SIZES}
        return ModelConfig.like(policy, **sizes).policy_shape(policy.vocab_size)
