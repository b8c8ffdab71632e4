"""The logits processors of some slots, as arrays: grammars, biases, penalties."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.config.model import PolicyShape
from ale_jax.model.sampling_masks import num_words, unpack

MAX_TOP_LOGPROBS = 20  # of the most probable tokens; what OpenAI's API gives at most


@struct.dataclass
class Guides:
    """Of each slot: whether its tokens are masked, and which are allowed in each of n decode steps
    (bit fields as in `sampling_masks`); whether its logits are biased, and what is added to them;
    whether its most probable tokens are wanted.

    What holds for a token depends on those before it. So the steps after the first one are run
    under masks that are certain, because the token before is the only one allowed, or speculative
    (`engine.request.Guide`). A slot with a bias decodes one token per dispatch.
    """

    is_masked_S: jax.Array  # bool
    allowed_nSw: jax.Array  # int32
    is_biased_S: jax.Array  # bool
    bias_SV: jax.Array  # float32
    wants_top_S: jax.Array  # bool


def no_guides(slots: int, vocab_size: int, steps: int) -> Guides:
    no_S = jnp.zeros((slots,), jnp.bool_)
    allowed_nSw = jnp.zeros((steps, slots, num_words(vocab_size)), jnp.int32)
    return Guides(no_S, allowed_nSw, no_S, jnp.zeros((slots, vocab_size), jnp.float32), no_S)


def apply_masks(logits_SV: jax.Array, guides: Guides | None, step: jax.Array | int) -> jax.Array:
    """-inf where a token is not allowed in this decode step. Rows without a mask stay bitwise the
    same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.is_masked_S.any(), _apply_masks, _as_it_is, logits_SV, guides, step)


def apply_biases(logits_SV: jax.Array, guides: Guides | None) -> jax.Array:
    """Adds the biases. Rows without one stay bitwise the same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.is_biased_S.any(), _apply_biases, _as_it_is, logits_SV, guides)


def most_probable(logp_SV: jax.Array, guides: Guides) -> tuple[jax.Array, jax.Array]:
    """Ids and log-probabilities [S, MAX_TOP_LOGPROBS] of the most probable tokens, where they are
    wanted; meaningless elsewhere."""
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
    """Memory that the guides of all slots take on each device."""
    return slots * (4 * steps * num_words(shape.vocab_size) + 4 * shape.vocab_size + 3)
