"""Every expert on every token: the way for the few tokens of a decode step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.model.equal_blocks import Weights

_ROWS = 16  # of each expert, up to which multiplying costs less than sorting


def are_few(tokens: int, chosen: int, num_experts: int) -> bool:
    """Whether `all_experts` is the better way for so many tokens with `chosen` experts each."""
    return tokens * chosen <= _ROWS * num_experts


def all_experts(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """The weighted sum of the SwiGLU of each token's K experts, [T,D]. An expert E, one more than
    there are, counts nothing."""
    gate_EDF, up_EDF, down_EFD = weights
    # One product per expert: CPUs would first transpose the weights of a joint one.
    x_ETD = jnp.broadcast_to(x_TD[None], (gate_EDF.shape[0], *x_TD.shape))
    hidden_ETF = jax.nn.silu(jnp.einsum("etd,edf->etf", x_ETD, gate_EDF))
    hidden_ETF = hidden_ETF * jnp.einsum("etd,edf->etf", x_ETD, up_EDF)
    chosen_TKE = jax.nn.one_hot(expert_TK, gate_EDF.shape[0], dtype=x_TD.dtype)
    weight_ET = jnp.einsum("tk,tke->et", weight_TK, chosen_TKE)
    # Weighted as the outputs of `equal_blocks` are, so that both ways round alike in bfloat16.
    y_ETD = jnp.einsum("etf,efd->etd", hidden_ETF, down_EFD)
    return jnp.einsum("etd,et->td", y_ETD, weight_ET)
