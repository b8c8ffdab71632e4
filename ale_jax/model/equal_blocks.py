"""Rows of experts in equal blocks: one batched product for nearly all, short rounds for the rest.

A batched product of equal blocks runs near a matrix unit's peak, where ragged products do not. So
each expert first gets room for SLACK times the mean load. What an expert has beyond that, in a
batch that is not balanced, follows in rounds for the experts with the most rows left, as many as
it takes: no row is dropped, and a balanced batch pays for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

SLACK = 1.25
_ROUND_SHARE = 8  # a round after the first is for this fraction of the experts
_TILE = 8  # rows; room comes in multiples

Weights = tuple[jax.Array, jax.Array, jax.Array]  # gate and up [E,D,F], down [E,F,D]
Total = TypeVar("Total")


def count_and_rank(expert_R: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
    """How many rows each expert has [E], and the how many-th of its expert's each row is [R].

    Rows of the expert `num_experts` are nobody's.
    """
    order_R = jnp.argsort(expert_R, stable=True)
    count_E = jnp.bincount(expert_R, length=num_experts + 1)
    start_E = jnp.cumsum(count_E) - count_E
    sorted_rank_R = jnp.arange(expert_R.shape[0]) - start_E[expert_R[order_R]]
    rank_R = jnp.zeros_like(sorted_rank_R).at[order_R].set(sorted_rank_R)
    return count_E[:num_experts], rank_R


@jax.custom_vjp
def equal_blocks(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """SwiGLU of each token by each of its K experts, [T,K,D]; 0 where the expert is E.

    The gradient is written out: the rounds are a loop of unknown length. Nothing but the arguments
    is kept for it, so what lies within an expert is computed again.
    """
    rows = _rows(weights, expert_TK)

    def add_block(y_RD: jax.Array, block: _Block) -> jax.Array:
        x_MCD = block.tokens(x_TD, rows)
        return block.put(y_RD, _swiglu(block.weights(weights), x_MCD))

    T, K = expert_TK.shape
    zero_RD = jnp.zeros((T * K, x_TD.shape[1]), x_TD.dtype)
    return _over_blocks(rows, add_block, zero_RD).reshape(T, K, -1)


def _forward(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array):
    kept = weights, x_TD, expert_TK
    return equal_blocks(*kept), kept


def _backward(kept, dy_TKD: jax.Array):
    weights, x_TD, expert_TK = kept
    (T, K, D), rows = dy_TKD.shape, _rows(weights, expert_TK)
    dy_RD = dy_TKD.reshape(T * K, D)

    def add_block(total: tuple[Weights, jax.Array], block: _Block):
        d_weights, dx_RD = total
        _, pull = jax.vjp(_swiglu, block.weights(weights), block.tokens(x_TD, rows))
        d_block, dx_MCD = pull(block.take(dy_RD))
        return block.add_weights(d_weights, d_block), block.put(dx_RD, dx_MCD)

    zeros = jax.tree.map(jnp.zeros_like, weights), jnp.zeros_like(dy_RD)
    d_weights, dx_RD = _over_blocks(rows, add_block, zeros)
    return d_weights, dx_RD.reshape(T, K, D).sum(axis=1), None


equal_blocks.defvjp(_forward, _backward)


def _swiglu(weights: Weights, x_MCD: jax.Array) -> jax.Array:
    gate, up, down = weights
    hidden_MCF = jax.nn.silu(jnp.einsum("mcd,mdf->mcf", x_MCD, gate))
    hidden_MCF = hidden_MCF * jnp.einsum("mcd,mdf->mcf", x_MCD, up)
    return jnp.einsum("mcf,mfd->mcd", hidden_MCF, down)


class _Rows(NamedTuple):
    """All rows: whose each is, the how many-th of its expert's, and how many an expert has."""

    expert_R: jax.Array
    rank_R: jax.Array
    count_E: jax.Array
    per_token: int
    room: int  # rows of one expert in a block: C


class _Block(NamedTuple):
    """What is computed at once, for M experts: `row_MC` holds each place's row, or a number from R
    on (each another one) where it is empty. expert_M: None for all of them, in order."""

    row_MC: jax.Array
    expert_M: jax.Array | None

    def weights(self, weights: Weights) -> Weights:
        return weights if self.expert_M is None else tuple(w[self.expert_M] for w in weights)

    def add_weights(self, total: Weights, part: Weights) -> Weights:
        if self.expert_M is None:
            return jax.tree.map(jnp.add, total, part)
        return tuple(t.at[self.expert_M].add(p) for t, p in zip(total, part, strict=True))

    def tokens(self, x_TD: jax.Array, rows: _Rows) -> jax.Array:
        """[M,C,D]; SwiGLU(0) = 0 where a place is empty."""
        return x_TD.at[self.row_MC // rows.per_token].get(mode="fill", fill_value=0)

    def take(self, y_RD: jax.Array) -> jax.Array:
        return y_RD.at[self.row_MC].get(mode="fill", fill_value=0)

    def put(self, y_RD: jax.Array, y_MCD: jax.Array) -> jax.Array:
        return y_RD.at[self.row_MC].set(y_MCD, mode="drop", unique_indices=True)


def _rows(weights: Weights, expert_TK: jax.Array) -> _Rows:
    E, expert_R = weights[0].shape[0], expert_TK.reshape(-1)
    count_E, rank_R = count_and_rank(expert_R, E)
    mean_load = -(-expert_R.shape[0] * SLACK // E)
    room = int(-(-mean_load // _TILE) * _TILE)
    return _Rows(expert_R, rank_R, count_E, expert_TK.shape[1], room)


def _over_blocks(rows: _Rows, add_block: Callable[[Total, _Block], Total], total: Total) -> Total:
    """add_block: (total, block) -> total. Each row is in exactly one block."""
    E, C = rows.count_E.shape[0], rows.room
    M = max(1, E // _ROUND_SHARE)
    everyone_E = jnp.arange(E)
    total = add_block(total, _Block(_places(rows, everyone_E, jnp.zeros_like(everyone_E), E), None))

    def has_rows_left(state):
        done_E, _ = state
        return (done_E < rows.count_E).any()

    def next_round(state):
        done_E, total = state
        _, expert_M = jax.lax.top_k(rows.count_E - done_E, M)
        slot_E = jnp.full((E,), M).at[expert_M].set(jnp.arange(M))
        total = add_block(total, _Block(_places(rows, slot_E, done_E, M), expert_M))
        return done_E.at[expert_M].add(C), total

    done_E = jnp.full((E,), C, rows.count_E.dtype)
    return jax.lax.while_loop(has_rows_left, next_round, (done_E, total))[1]


def _places(rows: _Rows, slot_E: jax.Array, done_E: jax.Array, slots: int) -> jax.Array:
    """The row of each place [slots,C]: the C rows from `done_E` on of the expert in each slot."""
    R, C = rows.expert_R.shape[0], rows.room
    slot_R = slot_E.at[rows.expert_R].get(mode="fill", fill_value=slots)
    offset_R = rows.rank_R - done_E.at[rows.expert_R].get(mode="fill", fill_value=0)
    is_here_R = (slot_R < slots) & (offset_R >= 0) & (offset_R < C)
    place_R = jnp.where(is_here_R, slot_R * C + offset_R, slots * C)
    empty_P = R + jnp.arange(slots * C)
    return empty_P.at[place_R].set(jnp.arange(R), mode="drop").reshape(slots, C)
