"""What guides sampling, in compiled programs: masks of the allowed tokens, and biases of the
logits.

The sampler obeys them slot by slot (`Guides`). The learner computes the same distribution again
from the masks that packed tokens were sampled under (`SamplingMasks`). A mask is a bit field: bit v
% 32 of word v // 32 is that of token v. It is unpacked where logits are computed, so that it never
takes more memory than a bit for each token of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ale_jax.config.architecture import PolicyShape
from ale_jax.records import FORCED, MASK_WORD, MAX_MASKS

# The logit of a token that was not allowed. Its probability p is 0, and so is p log p, also in
# gradients; with -inf that would be nan.
NOT_ALLOWED = -1e30
MAX_TOP_LOGPROBS = 20  # of the most probable tokens; what OpenAI's API gives at most


@struct.dataclass
class Guides:
    """Of each slot: whether its tokens are masked, and which are allowed in each of n decode steps
    (bit fields); whether its logits are biased, and what is added to them;
    whether its most probable tokens are wanted.

    What holds for a token depends on those before it. So the steps after the first one are run
    under masks that are certain, because the token before is the only one allowed, or speculative
    (`engine.request.Guide`). A slot with a bias decodes one token per dispatch.
    """

    is_masked_S: jax.Array | np.ndarray  # bool
    allowed_nSw: jax.Array | np.ndarray  # int32
    is_biased_S: jax.Array | np.ndarray  # bool
    bias_SV: jax.Array | np.ndarray  # float32
    wants_top_S: jax.Array | np.ndarray  # bool


def no_guides(slots: int, vocab_size: int, steps: int) -> Guides:
    """Returns guides that change nothing, in the shapes of all others."""
    no_S = jnp.zeros((slots,), jnp.bool_)
    allowed_nSw = jnp.zeros((steps, slots, num_words(vocab_size)), jnp.int32)
    return Guides(no_S, allowed_nSw, no_S, jnp.zeros((slots, vocab_size), jnp.float32), no_S)


def apply_masks(logits_SV: jax.Array, guides: Guides | None, step: jax.Array | int) -> jax.Array:
    """Sets logits to -inf where a token is not allowed in this decode step. Rows without a mask
    stay bitwise the same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.is_masked_S.any(), _apply_masks, _as_it_is, logits_SV, guides, step)


def apply_biases(logits_SV: jax.Array, guides: Guides | None) -> jax.Array:
    """Adds the biases. Rows without one stay bitwise the same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.is_biased_S.any(), _apply_biases, _as_it_is, logits_SV, guides)


def most_probable(logp_SV: jax.Array, guides: Guides) -> tuple[jax.Array, jax.Array]:
    """Returns the ids and log-probabilities [S, MAX_TOP_LOGPROBS] of the most probable tokens,
    where they are wanted; meaningless elsewhere."""
    S, V = logp_SV.shape
    most = min(MAX_TOP_LOGPROBS, V)

    def top(logp_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
        logp_Sk, id_Sk = jax.lax.top_k(logp_SV, most)
        return id_Sk, logp_Sk

    def nothing(logp_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((S, most), jnp.int32), jnp.zeros((S, most), logp_SV.dtype)

    return jax.lax.cond(guides.wants_top_S.any(), top, nothing, logp_SV)


def _apply_masks(logits_SV: jax.Array, guides: Guides, step: jax.Array | int) -> jax.Array:
    allowed_SV = unpack(guides.allowed_nSw[step], logits_SV.shape[1])
    return jnp.where(guides.is_masked_S[:, None] & ~allowed_SV, -jnp.inf, logits_SV)


def _apply_biases(logits_SV: jax.Array, guides: Guides) -> jax.Array:
    return jnp.where(guides.is_biased_S[:, None], logits_SV + guides.bias_SV, logits_SV)


def _as_it_is(logits_SV: jax.Array, *_: object) -> jax.Array:
    return logits_SV


def guides_bytes(shape: PolicyShape, slots: int, steps: int) -> int:
    """Returns the bytes that the guides of all slots take on each device."""
    return slots * (4 * steps * num_words(shape.vocab_size) + 4 * shape.vocab_size + 3)


class SamplingMasks(NamedTuple):
    """What the tokens of packed rows were sampled under. mask_id_BT, mask_BIw: as in `Batch`."""

    mask_id_BT: jax.Array
    mask_BIw: jax.Array


def num_words(vocab_size: int) -> int:
    """Returns how many words of 32 bits hold a bit for each token of the vocabulary."""
    return -(-vocab_size // MASK_WORD)


def masks_bytes(shape: PolicyShape, rows: int, masks: int = MAX_MASKS) -> int:
    """Returns the bytes that the masks of packed rows take. masks: of each row."""
    return rows * masks * 4 * num_words(shape.vocab_size)


def unpack(words: jax.Array, vocab_size: int) -> jax.Array:
    """Returns bit fields [..., w] as bool [..., V]. Tokens for which there are no words are not
    allowed."""
    bit = jax.lax.broadcasted_iota(jnp.int32, (*words.shape, MASK_WORD), words.ndim)
    allowed = (words[..., None] >> bit) & 1 == 1
    allowed = allowed.reshape(*words.shape[:-1], -1)[..., :vocab_size]
    missing = vocab_size - allowed.shape[-1]
    return jnp.pad(allowed, [(0, 0)] * (words.ndim - 1) + [(0, missing)])


def packed(allowed: jax.Array) -> jax.Array:
    """Returns bool [..., V] as bit fields [..., w], int32."""
    *rows, V = allowed.shape
    missing = [(0, 0)] * len(rows) + [(0, -V % MASK_WORD)]
    bits = jnp.pad(allowed, missing).reshape(*rows, -1, MASK_WORD).astype(jnp.uint32)
    place = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, bits.ndim - 1)
    words = (bits << place).sum(axis=-1, dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def restricted(
    logits_BtV: jax.Array, target_Bt: jax.Array, mask_id_Bt: jax.Array, mask_BIw: jax.Array
) -> jax.Array:
    """Returns the logits that the tokens `target_Bt` were sampled from. Those of free tokens stay
    bitwise the same. A token that was forced was the only one, so it is certain, and has no
    gradient."""
    V = logits_BtV.shape[-1]
    number_Bt1 = jnp.maximum(mask_id_Bt, 0).astype(jnp.int32)[..., None]
    allowed_BtV = unpack(jnp.take_along_axis(mask_BIw, number_Bt1, axis=1), V)
    is_target_BtV = jnp.arange(V)[None, None] == target_Bt[..., None]
    allowed_BtV = jnp.where((mask_id_Bt == FORCED)[..., None], is_target_BtV, allowed_BtV)
    is_held_Bt1 = ((mask_id_Bt >= 0) | (mask_id_Bt == FORCED))[..., None]
    return jnp.where(is_held_Bt1 & ~allowed_BtV, NOT_ALLOWED, logits_BtV)
