"""Small policies that the tests share."""

import dataclasses

from ale_jax.model.shape import PolicyShape

MOE = PolicyShape(
    vocab_size=96,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_width=16,
    mlp_width=48,
    num_experts=8,
    experts_per_token=2,
    expert_width=24,
    dense_layers=(),
    norm_topk_prob=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    tie_embeddings=True,
)
DENSE = dataclasses.replace(MOE, num_experts=0, tie_embeddings=False)
MIXED = dataclasses.replace(MOE, dense_layers=(0,))
