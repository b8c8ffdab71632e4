"""The experts' SwiGLU, each on the tokens that chose it: dropless, in the platform's own way."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ale_jax.model.equal_blocks import Weights, count_and_rank, equal_blocks

_MIN_BLOCK = 8  # rows; smaller blocks spend more on reading weights than on multiplying


def expert_outputs(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """Each token's SwiGLU by each of its K experts, [T,K,D]. Any routing fits: nothing is dropped.

    weights: gate and up [E,D,F], down [E,F,D]. An expert E, one more than there are, gives 0.
    """
    return jax.lax.platform_dependent(
        weights, x_TD, expert_TK, cpu=sorted_blocks, default=equal_blocks
    )


def all_experts(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """Every expert on every token, and the weighted sum of each token's own, [T,D]: for the few
    tokens of a decode step sorting costs more. An expert E counts nothing."""
    gate_EDF, up_EDF, down_EFD = weights
    # One product per expert: CPUs would first transpose the weights of a joint one.
    x_ETD = jnp.broadcast_to(x_TD[None], (gate_EDF.shape[0], *x_TD.shape))
    hidden_ETF = jax.nn.silu(jnp.einsum("etd,edf->etf", x_ETD, gate_EDF))
    hidden_ETF = hidden_ETF * jnp.einsum("etd,edf->etf", x_ETD, up_EDF)
    chosen_TKE = jax.nn.one_hot(expert_TK, gate_EDF.shape[0], dtype=x_TD.dtype)
    weight_ET = jnp.einsum("tk,tke->et", weight_TK, chosen_TKE)
    # Weighted as `expert_outputs` are, so that both ways round alike in bfloat16.
    y_ETD = jnp.einsum("etf,efd->etd", hidden_ETF, down_EFD)
    return jnp.einsum("etd,et->td", y_ETD, weight_ET)


def are_few(tokens: int, chosen: int, num_experts: int) -> bool:
    """Whether `all_experts` is the better way for so many tokens with `chosen` experts each."""
    return tokens * chosen <= 2 * num_experts * _MIN_BLOCK


def sorted_blocks(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """As `expert_outputs`: rows sorted by expert, each expert's run padded to whole blocks, one
    product per block with its expert's weights.

    The number of blocks has the static bound R/block + E, so that any routing fits. The work is
    R + E*block/2 rows on average, where computing every expert would be E*T.
    """
    gate_EDF, up_EDF, down_EFD = weights
    (T, D), K = x_TD.shape, expert_TK.shape[1]
    E, R, expert_R = gate_EDF.shape[0], T * K, expert_TK.reshape(-1)
    block = _block_rows(R, E)
    num_blocks = -(-R // block) + E
    count_E, rank_R = count_and_rank(expert_R, E)
    blocks_E = -(-count_E // block)
    first_row_E = (jnp.cumsum(blocks_E) - blocks_E) * block
    # What is no expert's lies behind the end, where writes are dropped and reads give 0.
    behind = num_blocks * block
    first_row_R = first_row_E.at[expert_R].get(mode="fill", fill_value=behind)
    place_R = jnp.minimum(first_row_R + rank_R, behind)
    source_P = jnp.full((behind,), T, jnp.int32).at[place_R].set(jnp.arange(R) // K, mode="drop")
    x_PD = x_TD.at[source_P].get(mode="fill", fill_value=0)  # SwiGLU(0) = 0 where nothing lies
    x_QbD = x_PD.reshape(num_blocks, block, D)
    expert_Q = jnp.searchsorted(jnp.cumsum(blocks_E), jnp.arange(num_blocks), side="right")
    expert_Q = jnp.minimum(expert_Q, E - 1)  # unused blocks at the end hold zeros only
    gate = jax.nn.silu(jnp.einsum("qbd,qdf->qbf", x_QbD, gate_EDF[expert_Q]))
    up = jnp.einsum("qbd,qdf->qbf", x_QbD, up_EDF[expert_Q])
    y_QbD = jnp.einsum("qbf,qfd->qbd", gate * up, down_EFD[expert_Q])
    y_RD = y_QbD.reshape(-1, D).at[place_R].get(mode="fill", fill_value=0)
    return y_RD.reshape(T, K, D)


def _block_rows(rows: int, experts: int) -> int:
    """A power of two of about a quarter of an expert's mean load, between 8 and 128 rows."""
    block = _MIN_BLOCK
    while block < 128 and block * 4 * experts < rows:
        block *= 2
    return block
