"""The numbers that define a policy's architecture: Qwen3-MoE, Qwen3, Qwen2 and Llama shapes."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PolicyShape:
    """Sizes of a decoder as transformers defines it. With `num_experts` 0 the feed-forward is
    dense, else a mixture of experts. Qwen3 has `qk_norm`, Qwen2 `qkv_bias`, Llama neither.

    The comment of each field is its letter in array names, or its meaning.
    """

    vocab_size: int  # V
    width: int  # D
    num_layers: int  # L
    num_heads: int  # N
    num_kv_heads: int  # G, divides N
    head_width: int  # H, even
    mlp_width: int  # F of a dense feed-forward
    num_experts: int  # E; 0 = dense
    experts_per_token: int  # K
    expert_width: int  # F of each expert
    dense_layers: tuple[int, ...]  # indices of layers that are dense although others have experts
    norm_topk_prob: bool  # the K router weights are rescaled to sum to 1
    qk_norm: bool  # queries and keys are normalized per head
    qkv_bias: bool  # queries, keys and values have a bias
    rope_theta: float
    llama3_rope: tuple[float, ...]  # (factor, low, high, trained positions) of Llama 3, or empty
    max_positions: int  # longest conversation it was made for; no computation uses it
    norm_eps: float
    tie_embeddings: bool  # the output head is the embedding, transposed

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads {self.num_heads} must be a multiple of "
                f"model.num_kv_heads {self.num_kv_heads}"
            )
        if self.head_width % 2:
            raise ValueError(
                f"model.head_width {self.head_width} must be even: rotary embeddings rotate pairs"
            )
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"model.experts_per_token {self.experts_per_token} must lie between 1 and "
                f"model.num_experts {self.num_experts}"
            )
        if len(self.llama3_rope) not in (0, 4):
            raise ValueError(
                f"model.llama3_rope {self.llama3_rope} must be empty, or Llama 3's factor, "
                "low_freq_factor, high_freq_factor and original_max_position_embeddings"
            )
        if not set(self.dense_layers) <= set(range(self.num_layers)):
            raise ValueError(
                f"model.dense_layers {self.dense_layers} must be indices of the "
                f"{self.num_layers} layers, from 0"
            )

    @property
    def is_moe(self) -> bool:
        return any(self.has_experts(layer) for layer in range(self.num_layers))

    @property
    def num_moe_layers(self) -> int:
        return sum(map(self.has_experts, range(self.num_layers)))

    def has_experts(self, layer: int) -> bool:
        return self.num_experts > 0 and layer not in self.dense_layers
