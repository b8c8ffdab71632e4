"""Rotary position embeddings (arXiv 2104.09864), and how their frequencies are scaled."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import (
    FactorScaling,
    Growth,
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
)


def rotary(x_BTNH: jax.Array, position_BT: jax.Array, rope: Rope) -> jax.Array:
    """Rotates pairs among the first `rope.width` dims of each head, by position * frequency."""
    # float32: bfloat16 rounds 257 to 256, which would make two positions one.
    frequency = rotary_frequencies(rope)[None, None, None, :]
    angle = position_BT[:, :, None, None].astype(jnp.float32) * frequency
    cos, sin = (turn(angle) for turn in (jnp.cos, jnp.sin))
    if (size := magnitude(rope)) != 1.0:
        cos, sin = cos * size, sin * size
    cos, sin = cos.astype(x_BTNH.dtype), sin.astype(x_BTNH.dtype)
    turned, rest = x_BTNH[..., : rope.width], x_BTNH[..., rope.width :]
    if rope.interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        halves = [pairs.reshape(turned.shape)]
    else:
        a, b = turned[..., : rope.width // 2], turned[..., rope.width // 2 :]
        halves = [a * cos - b * sin, b * cos + a * sin]
    return jnp.concatenate([*halves, rest] if rest.shape[-1] else halves, axis=-1)


def grown(x_BTNH: jax.Array, position_BT: jax.Array, growth: Growth) -> jax.Array:
    """Returns x times the factor of each position."""
    steps_BT = jnp.floor(position_BT.astype(jnp.float32) / growth.every)
    factor_BT = 1 + growth.rate * jnp.log(1 + steps_BT)
    return x_BTNH * factor_BT[..., None, None].astype(x_BTNH.dtype)


def magnitude(rope: Rope) -> float:
    """Returns what cosine and sine are multiplied by."""
    scaling = rope.scaling
    return scaling.magnitude if isinstance(scaling, YarnScaling | FactorScaling) else 1.0


def rotary_frequencies(rope: Rope) -> np.ndarray:
    """Returns the radians per position of each pair, [width/2]: theta^(-2i/width), scaled as in
    transformers."""
    half = rope.width // 2
    frequency = rope.theta ** (-np.arange(half, dtype=np.float64) / half)
    match rope.scaling:
        case LinearScaling(factor):
            frequency = frequency / factor
        case Llama3Scaling(factor, low, high, trained):
            waves = trained * frequency / (2 * np.pi)  # within the pretraining context
            kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
            frequency = frequency * (kept + (1 - kept) / factor)
        case YarnScaling() as yarn:
            kept = 1 - _yarn_ramp(rope, yarn)
            frequency = frequency * (kept + (1 - kept) / yarn.factor)
        case FactorScaling(factors):
            frequency = frequency / np.asarray(factors, np.float64)
    return frequency.astype(np.float32)


def _yarn_ramp(rope: Rope, yarn: YarnScaling) -> np.ndarray:
    """From 0 for the fast pairs, which are kept, to 1 for the slow ones, which are divided."""

    def pair_of(rotations: float) -> float:
        """The pair that turns this often within the pretraining context."""
        turns = math.log(yarn.trained / (rotations * 2 * math.pi))
        return rope.width * turns / (2 * math.log(rope.theta))

    first, last = pair_of(yarn.fast), pair_of(yarn.slow)
    if yarn.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.width - 1)
    if first == last:
        last += 0.001  # the ramp is a step, as in transformers
    pairs = np.arange(rope.width // 2, dtype=np.float64)
    return np.clip((pairs - first) / (last - first), 0.0, 1.0)
