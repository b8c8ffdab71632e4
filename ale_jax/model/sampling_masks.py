"""Sampling masks in compiled programs: which tokens of the vocabulary were allowed.

A mask is a bit field: bit v % 32 of word v // 32 is that of token v. It is unpacked where logits
are computed, so that it never takes more memory than a bit for each token of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.config.model import PolicyShape
from ale_jax.records import FORCED, MASK_WORD, MAX_MASKS

# The logit of a token that was not allowed. Its probability p is 0, and so is p log p, also in
# gradients; with -inf that would be nan.
NOT_ALLOWED = -1e30


class SamplingMasks(NamedTuple):
    """What the tokens of packed rows were sampled under. mask_id_BT, mask_BIw: as in `Batch`."""

    mask_id_BT: jax.Array
    mask_BIw: jax.Array


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // MASK_WORD)


def masks_bytes(shape: PolicyShape, rows: int) -> int:
    """Memory that the masks of packed rows take."""
    return rows * MAX_MASKS * 4 * num_words(shape.vocab_size)


def unpack(words: jax.Array, vocab_size: int) -> jax.Array:
    """Bit fields [..., w] as bool [..., V]. Tokens for which there are no words are not allowed."""
    bit = jax.lax.broadcasted_iota(jnp.int32, (*words.shape, MASK_WORD), words.ndim)
    allowed = (words[..., None] >> bit) & 1 == 1
    allowed = allowed.reshape(*words.shape[:-1], -1)[..., :vocab_size]
    missing = vocab_size - allowed.shape[-1]
    return jnp.pad(allowed, [(0, 0)] * (words.ndim - 1) + [(0, missing)])


def restricted(
    logits_BtV: jax.Array, target_Bt: jax.Array, mask_id_Bt: jax.Array, mask_BIw: jax.Array
) -> jax.Array:
    """The logits that the tokens `target_Bt` were sampled from. Those of free tokens stay bitwise
    the same. A token that was forced was the only one, so it is certain, and has no gradient."""
    V = logits_BtV.shape[-1]
    number_Bt1 = jnp.maximum(mask_id_Bt, 0).astype(jnp.int32)[..., None]
    allowed_BtV = unpack(jnp.take_along_axis(mask_BIw, number_Bt1, axis=1), V)
    is_target_BtV = jnp.arange(V)[None, None] == target_Bt[..., None]
    allowed_BtV = jnp.where((mask_id_Bt == FORCED)[..., None], is_target_BtV, allowed_BtV)
    is_held_Bt1 = ((mask_id_Bt >= 0) | (mask_id_Bt == FORCED))[..., None]
    return jnp.where(is_held_Bt1 & ~allowed_BtV, NOT_ALLOWED, logits_BtV)
