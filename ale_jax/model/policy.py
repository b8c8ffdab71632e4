"""The policy's forward pass over packed rows: hidden states, log-probabilities, entropy."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.model.layers import attend, feed_forward, project_qkv, rms_norm
from ale_jax.model.moe import RouterStats
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape


def hidden_states(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    shape: PolicyShape,
) -> tuple[jax.Array, list[RouterStats]]:
    """Final hidden states [B,T,D] (normed), and each layer's router statistics.

    A token sees the earlier tokens of its own segment; segment 0 is padding.
    """
    T = tokens_BT.shape[1]
    causal_TT = jnp.tril(jnp.ones((T, T), bool))
    mask_BTT = causal_TT[None] & (segment_BT[:, :, None] == segment_BT[:, None, :])
    x_BTD = params["embed_VD"][tokens_BT]
    stats = []
    for layer in params["layers"]:
        q, k, v = project_qkv(layer, x_BTD, position_BT, shape)
        x_BTD = x_BTD + attend(layer, q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask_BTT)
        y_BTD, layer_stats = feed_forward(layer, x_BTD, shape)
        x_BTD = x_BTD + y_BTD
        if layer_stats is not None:
            stats.append(layer_stats)
    return rms_norm(x_BTD, params["final_norm_D"], shape.norm_eps), stats


def logits(params: Params, hidden_BTD: jax.Array) -> jax.Array:
    """Unnormalised log-probabilities over the vocabulary, float32 [B,T,V]."""
    # Said to the product itself: a bfloat16 result is or is not rounded as XLA sees fit.
    if "head_DV" in params:
        equation, head = "btd,dv->btv", params["head_DV"]
    else:
        equation, head = "btd,vd->btv", params["embed_VD"]
    return jnp.einsum(equation, hidden_BTD, head, preferred_element_type=jnp.float32)


class TokenScores(NamedTuple):
    """Of each token given those before it in its segment (0 at position 0): natural log, float32.

    logp_BT log-probability, entropy_BT of the distribution it was drawn from, best_BT whether it
    was the most probable one.
    """

    logp_BT: jax.Array
    entropy_BT: jax.Array
    best_BT: jax.Array


def score_tokens(
    params: Params, tokens_BT: jax.Array, hidden_BTD: jax.Array, position_BT: jax.Array
) -> TokenScores:
    """Scores every token under the hidden state just before it, a row at a time.

    The scan holds [T,V] of one row, recomputed in the backward pass, and never [B,T,V].
    """

    @jax.checkpoint
    def score_row(_, row):
        tokens_T, hidden_TD = row
        logits_TV = logits(params, hidden_TD[None, :-1])[0]
        log_prob_TV = jax.nn.log_softmax(logits_TV, axis=-1)
        target_T = tokens_T[1:]
        logp_T = jnp.take_along_axis(log_prob_TV, target_T[:, None], axis=-1)[:, 0]
        entropy_T = -(jnp.exp(log_prob_TV) * log_prob_TV).sum(axis=-1)
        best_T = log_prob_TV.argmax(axis=-1) == target_T
        return None, (logp_T, entropy_T, best_T)

    _, (logp, entropy, best) = jax.lax.scan(score_row, None, (tokens_BT, hidden_BTD))
    has_past = position_BT[:, 1:] > 0

    def align(x):
        return jnp.pad(jnp.where(has_past, x, 0), ((0, 0), (1, 0)))

    return TokenScores(align(logp), align(entropy), align(best))
