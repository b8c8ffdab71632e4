"""The work of all contenders: the same weights, and the same numbers of tokens."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import ModelConfig

ROWS = 8
PROMPT_TOKENS = 64
WRITTEN_TOKENS = 64
ROW_TOKENS = PROMPT_TOKENS + WRITTEN_TOKENS
FIRST_ID = 3  # lower ids are padding, end and beginning, which no prompt contains


def _shape(experts: int, chosen: int, width: int) -> PolicyShape:
    """width: of each expert, or of the dense feed-forward block if there are no experts."""
    return ModelConfig(
        width=256,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_width=32,
        mlp_width=width,
        num_experts=experts,
        experts_per_token=chosen,
        expert_width=width,
        rope_theta=1e6,
        max_positions=32_768,
        tie_embeddings=False,
    ).policy_shape(2048)


@dataclasses.dataclass(frozen=True)
class Work:
    """bars: required tokens per second, as multiples of the best peer's."""

    shape: PolicyShape
    bars: dict[str, float]


WORKS = {
    "E0": Work(_shape(0, 1, 768), {"generation": 1.2, "training": 1.0}),
    "E16": Work(_shape(16, 4, 128), {"generation": 2.0, "training": 1.0}),
    "E64": Work(_shape(64, 8, 96), {"generation": 2.0, "training": 1.0}),
}


def peer_flags(shape: PolicyShape) -> list[str]:
    """The same work, as options of the peers' scripts."""
    model = ModelConfig.of(shape)
    numbers = {
        "layers": shape.num_layers,
        "d_model": shape.width,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_width,
        "experts": shape.num_experts,
        "topk": shape.experts_per_token,
        "d_ff": model.mlp_width,
        "vocab": shape.vocab_size,
        "rope_theta": model.rope_theta,
        "batch": ROWS,
        "prompt_len": PROMPT_TOKENS,
        "gen_len": WRITTEN_TOKENS,
    }
    return [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
