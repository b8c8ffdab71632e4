"""The policy: its architecture, its tokenizer, and how it is computed and adapted."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

MIN_VOCAB = 265  # of the byte-level BPE: 256 bytes, 3 special tokens, 6 markers
DTYPES = ("float32", "bfloat16")
REMAT = ("none", "dots", "layers")
SAME = "same"
STORED_AS = (SAME, "int8", "fp8")  # how a sampler's weights may be stored
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Settings):
    """The policy's shape, without the vocabulary size, which comes from the tokenizer.

    Sizes are those of Qwen3-0.6B unless a recipe says otherwise.
    """

    width: int = setting(1024, "width of the residual stream.", at_least=1)
    num_layers: int = setting(28, "decoder layers.", at_least=1)
    num_heads: int = setting(
        16,
        "query heads of each layer, a multiple of num_kv_heads.",
        at_least=1,
    )
    num_kv_heads: int = setting(8, "key and value heads of each layer.", at_least=1)
    head_width: int = setting(128, "width of a head; even.", at_least=1)
    mlp_width: int = setting(3072, "inner width of a dense feed-forward block.", at_least=1)
    num_experts: int = setting(
        0,
        "experts of each mixture-of-experts layer; 0: all layers are dense.",
        at_least=0,
    )
    experts_per_token: int = setting(0, "experts that the router sends each token to.")
    expert_width: int = setting(0, "inner width of each expert's feed-forward block.")
    dense_layers: tuple[int, ...] = setting(
        (),
        "indices of the layers that are dense although the others have experts.",
    )
    norm_topk_prob: bool = setting(
        True,
        "the router weights of the chosen experts are rescaled to sum to 1.",
    )
    qk_norm: bool = setting(True, "queries and keys are normalized per head, as in Qwen3.")
    qkv_bias: bool = setting(False, "queries, keys and values have a bias, as in Qwen2.")
    rope_theta: float = setting(
        10_000.0,
        "base of the rotary embedding.",
        at_least=1.0,
        at_most=1e12,
        remedy="1e4 is usual",
    )
    llama3_rope: tuple[float, ...] = setting(
        (),
        "(factor, low, high, trained positions) of Llama 3's scaling; empty: no scaling.",
    )
    max_positions: int = setting(
        32_768,
        "longest conversation, in tokens, that the model was made for. It is only a limit on "
        "engine.max_sequence_length.",
        at_least=1,
    )
    norm_eps: float = setting(
        1e-6,
        "epsilon of the RMS norms.",
        at_least=0.0,
        at_most=1.0,
        remedy="1e-6 is usual",
    )
    tie_embeddings: bool = setting(True, "the output head is the embedding, transposed.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts and self.expert_width < 1:
            raise ValueError(f"expert_width {self.expert_width} must be at least 1")
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

    def policy_shape(self, vocab_size: int) -> PolicyShape:
        """Returns the shape of the policy whose tokenizer has `vocab_size` tokens."""
        return PolicyShape(vocab_size=vocab_size, **dataclasses.asdict(self))

    @property
    def is_moe(self) -> bool:
        return any(self.has_experts(layer) for layer in range(self.num_layers))

    @property
    def num_moe_layers(self) -> int:
        return sum(map(self.has_experts, range(self.num_layers)))

    def has_experts(self, layer: int) -> bool:
        """Tells whether a layer, counted from 0, is a mixture of experts."""
        return self.num_experts > 0 and layer not in self.dense_layers


@dataclasses.dataclass(frozen=True)
class PolicyShape(ModelConfig):
    """The numbers that define a policy's architecture: Qwen3-MoE, Qwen3, Qwen2 and Llama shapes.

    Their letters in the names of arrays: V vocab_size, D width, L num_layers, N num_heads,
    G num_kv_heads, H head_width, F mlp_width and expert_width, E num_experts, K experts_per_token.
    """

    vocab_size: int = dataclasses.field(kw_only=True)
    # Of a policy in parts, one part is what is outside of the layers.
    num_layers: int = setting(1, "decoder layers.", at_least=0)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Settings):
    """How text becomes tokens."""

    path: str = setting(
        "",
        "a folder that transformers can load, a .gguf file or a model's name; empty: the tokenizer "
        "of `weights`, or, without `weights`, a byte-level BPE of `vocab_size` tokens that is "
        "trained on the warm start's transcripts.",
    )
    vocab_size: int = setting(
        1024,
        "tokens of the BPE that is trained. With `weights`: rows of their embedding, which the "
        "files tell, and which may be more than the tokenizer has tokens.",
        at_least=MIN_VOCAB,
    )


@dataclasses.dataclass(frozen=True)
class LoraShape(Settings):
    """Low-rank adapters. If there are any, only they are trained."""

    rank: int = setting(
        0,
        "inner width of each adapter; 0: no adapters, all weights are trained.",
        at_least=0,
        remedy="0 trains all weights",
    )
    alpha: float = setting(0.0, "adapters are scaled by alpha / rank.")
    targets: tuple[str, ...] = setting(
        (),
        "linear maps that get adapters; gate, up and down are those of dense layers and of every "
        "expert.",
        choices=TARGETS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank and self.alpha <= 0:
            raise ValueError(f"lora.alpha {self.alpha} must be > 0: twice the rank is usual")
        if self.rank and not self.targets:
            raise ValueError(f"lora.targets is empty: choose some of {', '.join(TARGETS)}")


FULL = LoraShape()


@dataclasses.dataclass(frozen=True)
class Compute(Settings):
    """How a forward pass is computed. Weights, gradients, norms, softmax, router and scores stay
    float32.
    """

    compute_dtype: str = setting(
        "float32",
        "type of matrix products and of the activations between layers.",
        choices=DTYPES,
    )
    remat: str = setting(
        "none",
        'what the backward pass recomputes: "none", "dots" (all but products with dense weights) '
        'or "layers" (all within a layer).',
        choices=REMAT,
    )


FLOAT32 = Compute()
