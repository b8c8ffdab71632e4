"""What restricts and pushes the next token of some slots: grammars, biases, penalties."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ale_jax.model.sampling_masks import num_words, unpack
from ale_jax.model.shape import PolicyShape

MOST_SHOWN = 20  # of the most probable tokens; what OpenAI's API gives at most


@struct.dataclass
class Guides:
    """Of each slot: whether its tokens are restricted, and to which in each of a burst's n steps
    (bit fields as in `sampling_masks`); whether logits are pushed, and what is added to them;
    whether its most probable tokens are to be shown.

    What holds for a token depends on those before it. So a slot that is restricted writes on where
    a token is the only one that is allowed, and otherwise under masks that are guessed
    (engine/guiding.py). A slot that is pushed writes one token per dispatch.
    """

    restricts_S: jax.Array  # bool
    allowed_nSw: jax.Array  # int32
    pushes_S: jax.Array  # bool
    push_SV: jax.Array  # float32
    shows_S: jax.Array  # bool


def no_guides(slots: int, vocab_size: int, steps: int) -> Guides:
    no_S = jnp.zeros((slots,), jnp.bool_)
    allowed_nSw = jnp.zeros((steps, slots, num_words(vocab_size)), jnp.int32)
    return Guides(no_S, allowed_nSw, no_S, jnp.zeros((slots, vocab_size), jnp.float32), no_S)


def restrict(logits_SV: jax.Array, guides: Guides | None, step: jax.Array | int) -> jax.Array:
    """-inf where a token is not allowed in this step of the burst. Rows without a restriction stay
    bitwise the same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.restricts_S.any(), _restrict, _as_it_is, logits_SV, guides, step)


def push(logits_SV: jax.Array, guides: Guides | None) -> jax.Array:
    """Adds what pushes tokens up or down. Rows without a push stay bitwise the same."""
    if guides is None:
        return logits_SV
    return jax.lax.cond(guides.pushes_S.any(), _push, _as_it_is, logits_SV, guides)


def most_probable(logp_SV: jax.Array, guides: Guides) -> tuple[jax.Array, jax.Array]:
    """Ids and log-probabilities [S, MOST_SHOWN] of the most probable tokens, where they are to be
    shown; meaningless elsewhere."""
    S, V = logp_SV.shape
    most = min(MOST_SHOWN, V)

    def top(logp_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
        logp_Sk, id_Sk = jax.lax.top_k(logp_SV, most)
        return id_Sk, logp_Sk

    def nothing(logp_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((S, most), jnp.int32), jnp.zeros((S, most), logp_SV.dtype)

    return jax.lax.cond(guides.shows_S.any(), top, nothing, logp_SV)


def _restrict(logits_SV: jax.Array, guides: Guides, step: jax.Array | int) -> jax.Array:
    allowed_SV = unpack(guides.allowed_nSw[step], logits_SV.shape[1])
    return jnp.where(guides.restricts_S[:, None] & ~allowed_SV, -jnp.inf, logits_SV)


def _push(logits_SV: jax.Array, guides: Guides) -> jax.Array:
    return jnp.where(guides.pushes_S[:, None], logits_SV + guides.push_SV, logits_SV)


def _as_it_is(logits_SV: jax.Array, *_: object) -> jax.Array:
    return logits_SV


def guides_bytes(shape: PolicyShape, slots: int, steps: int) -> int:
    """Memory that the guides of all slots take on each device."""
    return slots * (4 * steps * num_words(shape.vocab_size) + 4 * shape.vocab_size + 3)
