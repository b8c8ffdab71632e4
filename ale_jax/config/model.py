"""The policy: its architecture, its tokenizer, and how it is computed and adapted."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ale_jax.config.architecture import (
    Attention,
    Dense,
    Experts,
    Latent,
    Layer,
    Llama3Scaling,
    Norm,
    PolicyShape,
    Recurrent,
    Rope,
)
from ale_jax.config.setting import Options, Settings, setting

MIN_VOCAB = 265  # of the byte-level BPE: 256 bytes, 3 special tokens, 6 markers
DTYPES = ("float32", "bfloat16")
REMAT = ("none", "dots", "layers")
SAME = "same"
STORED_AS = (SAME, "int8", "fp8")  # how a sampler's weights may be stored
ALL_LINEAR = "all-linear"


@dataclasses.dataclass(frozen=True)
class ModelConfig(Settings):
    """The shape of a policy of the Qwen and Llama families, without the vocabulary size, which
    comes from the tokenizer.

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
        mixer = Attention(
            self.num_heads,
            self.num_kv_heads,
            self.head_width,
            scale=self.head_width**-0.5,
            rope=Rope(self.rope_theta, self.head_width, self._scaling),
            qk_norm="head" if self.qk_norm else "",
            bias=self.qkv_bias,
        )
        norm = Norm(self.norm_eps)
        return PolicyShape(
            vocab_size,
            self.width,
            tuple(Layer(mixer, self._feed_forward(n), norm) for n in range(self.num_layers)),
            norm,
            self.max_positions,
            self.tie_embeddings,
            self.family,
        )

    @classmethod
    def of(cls, shape: PolicyShape) -> ModelConfig:
        """Returns the fields of this shape. ValueError if it has kinds of layers that these fields
        cannot describe."""
        found = cls.nearest(shape)
        if not found.describes(shape):
            raise ValueError(f"model.* cannot describe layers of the family {shape.family!r}")
        return found

    def describes(self, shape: PolicyShape) -> bool:
        """Tells whether these fields say all of a shape."""
        return self.policy_shape(shape.vocab_size) == shape

    @classmethod
    def nearest(cls, shape: PolicyShape) -> ModelConfig:
        """Returns the fields that are nearest to a shape, with the numbers of its first layer where
        layers differ, and 0 where it does not use a field."""
        mixer, width = _first_attention(shape), {Dense: 0, Experts: 0}
        for layer in shape.layers:
            width[type(layer.feed_forward)] = layer.feed_forward.width
        experts = next((layer.experts for layer in shape.layers if layer.experts), None)
        dense = (i for i, layer in enumerate(shape.layers) if not layer.experts)
        return cls.like(
            shape,
            width=shape.width,
            num_layers=shape.num_layers,
            num_heads=mixer.num_heads,
            num_kv_heads=mixer.num_kv_heads,
            head_width=mixer.head_width,
            mlp_width=width[Dense] or width[Experts],
            num_experts=shape.num_experts,
            experts_per_token=shape.experts_per_token,
            expert_width=width[Experts],
            dense_layers=tuple(dense) if experts else (),
            norm_topk_prob=experts is None or experts.renormalise,
        )

    @classmethod
    def like(cls, shape: PolicyShape, **sizes: Any) -> ModelConfig:
        """Returns a model of these sizes, otherwise like a shape as far as these fields can say."""
        mixer = _first_attention(shape)
        rope = mixer.rope or Rope(10_000.0, 0)
        scaling = rope.scaling if isinstance(rope.scaling, Llama3Scaling) else None
        return cls(
            qk_norm=mixer.qk_norm == "head",
            qkv_bias=mixer.bias,
            rope_theta=rope.theta,
            llama3_rope=dataclasses.astuple(scaling) if scaling else (),
            max_positions=shape.max_positions,
            norm_eps=shape.norm.eps,
            tie_embeddings=shape.tie_embeddings,
            **sizes,
        )

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0 and len(set(self.dense_layers)) < self.num_layers

    @property
    def family(self) -> str:
        """The family of transformers that has such models; empty if none has."""
        match self.is_moe, self.qk_norm, self.qkv_bias:
            case True, True, False:
                return "qwen3_moe"
            case True, False, _:
                return "qwen2_moe"
            case False, True, False:
                return "qwen3"
            case False, False, True:
                return "qwen2"
            case False, False, False:
                return "llama"
        return ""

    @property
    def _scaling(self) -> Llama3Scaling | None:
        return Llama3Scaling(*self.llama3_rope) if self.llama3_rope else None

    def _feed_forward(self, layer: int) -> Dense | Experts:
        if not self.num_experts or layer in self.dense_layers:
            return Dense(self.mlp_width)
        return Experts(
            self.num_experts,
            self.experts_per_token,
            self.expert_width,
            renormalise=self.norm_topk_prob,
        )


def _first_attention(shape: PolicyShape) -> Attention:
    """The attention of the first layer that has some, as all families have."""
    mixer = next(x.mixer for x in shape.layers if not isinstance(x.mixer, Recurrent))
    return mixer.expanded if isinstance(mixer, Latent) else mixer


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
    chat_template_kwargs: Options = setting(
        (),
        "variables of the chat template, such as {'enable_thinking': False}, in all conversations "
        "of the run. A template that does not read one refuses it.",
    )
    date: str = setting(
        "",
        "YYYY-MM-DD, which chat templates that write today's date are told; empty: the day on "
        "which the run begins. The run's tokenizer keeps it.",
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
    rslora: bool = setting(
        False,
        "adapters are scaled by alpha / sqrt(rank) instead, for large ranks (arXiv 2312.03732).",
    )
    targets: tuple[str, ...] = setting(
        (),
        "linear maps of the layers that get adapters: 'all-linear'; names, such as q, k, v, o, and "
        "gate, up and down, of every expert too; or patterns of layers.NUMBER.NAME, such as "
        "'layers.1?.*'. What fits no map is refused with the names that there are.",
    )
    start: str = setting(
        "",
        "a folder in PEFT's format whose adapters training starts from; empty: new ones. rank, "
        "alpha, rslora and targets must be as they are there.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank and self.alpha <= 0:
            raise ValueError(f"lora.alpha {self.alpha} must be > 0: twice the rank is usual")
        if self.rank and not self.targets:
            raise ValueError(f"lora.targets is empty: {ALL_LINEAR!r} takes all maps of the layers")
        if self.start and not self.rank:
            raise ValueError(f"lora.start {self.start!r:.80} has no meaning at lora.rank 0")

    @property
    def scale(self) -> float:
        """What the adapters are multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


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
