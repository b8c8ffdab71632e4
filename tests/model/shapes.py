"""Small policies that the tests share."""

import dataclasses

import jax

from ale_jax.config.architecture import ClampedSwiglu, GatedDelta, Latent, Rope, ShortConv
from ale_jax.config.model import ModelConfig

_MOE = ModelConfig(
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_width=16,
    mlp_width=48,
    num_experts=8,
    experts_per_token=2,
    expert_width=24,
    max_positions=512,
)
MOE = _MOE.policy_shape(96)


def changed(shape, vocab_size=None, **fields):
    """A shape that differs from another in fields of `model`."""
    model = dataclasses.replace(ModelConfig.of(shape), **fields)
    return model.policy_shape(vocab_size or shape.vocab_size)


DENSE = changed(MOE, num_experts=0, mlp_width=48, tie_embeddings=False)
QWEN2 = changed(DENSE, qk_norm=False, qkv_bias=True)
# Short trained positions: of the waves some are kept, some blended, some slowed down.
LLAMA = changed(DENSE, qk_norm=False, llama3_rope=(8.0, 1.0, 4.0, 32.0))
MIXED = dataclasses.replace(_MOE, dense_layers=(0,)).policy_shape(96)


def with_mixer(shape, mixer):
    """The shape with another mixer in all layers, which no family of transformers has."""
    layers = tuple(dataclasses.replace(layer, mixer=mixer) for layer in shape.layers)
    return dataclasses.replace(shape, layers=layers, family="")


_ROPE = Rope(1e4, 8, interleaved=True)
LATENT = with_mixer(
    MIXED,
    Latent(4, q_rank=20, kv_rank=24, nope_width=12, value_width=10, scale=0.3, rope=_ROPE),
)
CLAMPED = ClampedSwiglu(alpha=1.7, limit=0.8)


def with_biases(weights):
    """Weights of experts, with biases."""
    E, D, F = weights.gate.shape
    sizes = {"gate_bias": (E, F), "up_bias": (E, F), "down_bias": (E, D)}
    keys = jax.random.split(jax.random.key(3), len(sizes))
    drawn = {
        name: jax.random.normal(key, size)
        for key, (name, size) in zip(keys, sizes.items(), strict=True)
    }
    return weights._replace(**drawn)


# A gated delta layer and a short convolution, then attention with an output gate.
_DELTA = GatedDelta(num_key_heads=2, num_value_heads=4, key_width=16, value_width=8, conv_width=4)
_DENSE, _SPARSE = MIXED.layers
RECURRENT = dataclasses.replace(
    MIXED,
    layers=(
        dataclasses.replace(_DENSE, mixer=_DELTA),
        dataclasses.replace(_DENSE, mixer=ShortConv(width=32, conv_width=3, bias=True)),
        dataclasses.replace(_SPARSE, mixer=dataclasses.replace(_SPARSE.mixer, gate=True)),
    ),
    family="",
)
