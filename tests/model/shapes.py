"""Small policies that the tests share."""

import dataclasses

from ale_jax.config.model import PolicyShape

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
    qk_norm=True,
    qkv_bias=False,
    rope_theta=10_000.0,
    llama3_rope=(),
    max_positions=512,
    norm_eps=1e-6,
    tie_embeddings=True,
)
DENSE = dataclasses.replace(MOE, num_experts=0, tie_embeddings=False)
QWEN2 = dataclasses.replace(DENSE, qk_norm=False, qkv_bias=True)
# Short trained positions: of the waves some are kept, some blended, some slowed down.
LLAMA = dataclasses.replace(DENSE, qk_norm=False, llama3_rope=(8.0, 1.0, 4.0, 32.0))
MIXED = dataclasses.replace(MOE, dense_layers=(0,))
