"""Capacity dispatch: one batched product for nearly all rows of the experts, and rounds for the
rest.

A batched product of equal blocks runs near a matrix unit's peak, which ragged products do not. Each
expert therefore first gets a capacity of SLACK times the mean load. Rows beyond the capacity of
their expert follow in rounds. Each round is for the experts with the most rows left, and there are
as many rounds as needed: no row is dropped, and a balanced batch needs no round.

Where there are fewer tokens than that pays for, as in a decode step, they go through every expert
instead (`all_experts`), or, where experts are left out, through those that they chose
(`chosen_experts`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Gate
from ale_jax.model.chosen_product import Stack, chosen_product, has_kernel
from ale_jax.model.compute import Adapted, Weight, loaded, product, times, used
from ale_jax.model.gates import gated
from ale_jax.model.sharding import current_device

SLACK = 1.25
_ROUND_EXPERTS = 16  # a round takes 1 / _ROUND_EXPERTS of the experts, each with
_ROUND_ROOM = 2  # 1 / _ROUND_ROOM of the first block's capacity
_TILE = 8  # rows; capacities are multiples of it

Total = TypeVar("Total")


class Weights(NamedTuple):
    """Of E experts: gate and up [E,D,F], down [E,F,D], and their biases [E,F], [E,F], [E,D]. Maps
    are as they are stored until they are `loaded`.

    uses: if there are several adapters, which columns of x A each row of x uses, bool [...,r]; see
    `compute.used`. No gradient flows then.
    """

    gate: Stack
    up: Stack
    down: Stack
    gate_bias: jax.Array | None = None
    up_bias: jax.Array | None = None
    down_bias: jax.Array | None = None
    uses: jax.Array | None = None

    def of(self, expert_U: jax.Array) -> Weights:
        alone = self._replace(uses=None)
        return jax.tree.map(lambda weight: jnp.asarray(weight)[expert_U], alone)._replace(
            uses=self.uses
        )

    def loaded(self, dtype: jnp.dtype) -> Weights:
        gate, up, down = (loaded(each, dtype) for each in self[:3])
        return self._replace(gate=gate, up=up, down=down)

    def moved(self, move: Callable[[jax.Array], jax.Array]) -> Weights:
        """Returns the same for the rows that `move` makes of x."""
        return self if self.uses is None else self._replace(uses=move(self.uses))


class Ranks(NamedTuple):
    """Rows sorted by the experts, or devices, that they go to. Rows of expert E, one past the last,
    go to no expert and come last.

    order_A: the rows in that order. starts: where each expert's rows begin in it. counts: number of
    rows of each expert. rank_A: the rank of each row among its expert's rows, from 0.
    """

    order_A: jax.Array
    starts: jax.Array
    counts: jax.Array
    rank_A: jax.Array


def ranks(expert_A: jax.Array, num_experts: int) -> Ranks:
    """Sorts rows by their experts; expert `num_experts` is none. See `Ranks`."""
    order_A = jnp.argsort(expert_A, stable=True)
    counts = jnp.bincount(expert_A, length=num_experts + 1)
    starts = jnp.cumsum(counts) - counts
    sorted_rank_A = jnp.arange(expert_A.shape[0]) - starts[expert_A[order_A]]
    rank_A = jnp.zeros_like(sorted_rank_A).at[order_A].set(sorted_rank_A)
    return Ranks(order_A, starts[:num_experts], counts[:num_experts], rank_A)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def capacity_dispatch(
    weights: Weights, x_TD: jax.Array, expert_TK: jax.Array, gate: Gate
) -> jax.Array:
    """Computes the feed-forward of each token by each of its K experts, [T,K,D]; 0 where the expert
    is E.

    The gradient is written by hand. The rounds are a loop of unknown length, so the backward pass
    recomputes their activations within an expert. The rows of the first block are moved by gathers
    alone, because scatters are slower.
    """
    return _forward(weights, x_TD, expert_TK, gate)[0]


def _forward(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array, gate: Gate):
    (T, K), rows = expert_TK.shape, _rows(weights, expert_TK)
    block = _first_block(rows)
    compute = functools.partial(_feed_forward, gate=gate)
    y_ECD, pull = jax.vjp(compute, block.weights(weights, rows), block.tokens(x_TD, rows))

    def add_round(y_AD: jax.Array, block: _Block) -> jax.Array:
        part = block.weights(weights.of(block.expert_U), rows)
        return block.put(y_AD, compute(part, block.tokens(x_TD, rows)))

    y_AD = _in_rounds(rows, add_round, block.rows_of(y_ECD))
    return y_AD.reshape(T, K, -1), (weights, x_TD, expert_TK, pull)


def _backward(gate: Gate, kept, dy_TKD: jax.Array):
    weights, x_TD, expert_TK, pull = kept
    (T, K, D), rows = dy_TKD.shape, _rows(weights, expert_TK)
    dy_AD, block = dy_TKD.reshape(T * K, D), _first_block(rows)
    d_weights, dx_ECD = pull(block.take(dy_AD))

    def add_round(total: tuple[Weights, jax.Array], block: _Block):
        d_weights, dx_AD = total
        part = weights.of(block.expert_U)
        compute = functools.partial(_feed_forward, gate=gate)
        _, pull = jax.vjp(compute, part, block.tokens(x_TD, rows))
        d_part, dx_UCD = pull(block.take(dy_AD))
        more = jax.tree.map(lambda d, p: d.at[block.expert_U].add(p), d_weights, d_part)
        return more, block.put(dx_AD, dx_UCD)

    total = d_weights, block.rows_of(dx_ECD)
    d_weights, dx_AD = _in_rounds(rows, add_round, total)
    return d_weights, dx_AD.reshape(T, K, D).sum(axis=1), None


capacity_dispatch.defvjp(_forward, _backward)


def weighted_sum(y_TKD: jax.Array, weight_TK: jax.Array) -> jax.Array:
    """Computes the weighted sum over each token's experts, [T,D]."""
    # Not a matrix product, for which CPUs would transpose all of y_TKD. It is rounded once, as in
    # `all_experts`.
    y_TKD32, weight_TK32 = y_TKD.astype(jnp.float32), weight_TK.astype(jnp.float32)
    return (y_TKD32 * weight_TK32[..., None]).sum(axis=1).astype(y_TKD.dtype)


def _feed_forward(
    weights: Weights, x_UCD: jax.Array, gate: Gate, times: Callable[..., jax.Array] = times
) -> jax.Array:
    """Places that are empty hold something, too, if there are biases. Nobody reads it."""
    uses = weights.uses
    gate_UCF = _with_bias(times(x_UCD, weights.gate, uses), weights.gate_bias)
    up_UCF = _with_bias(times(x_UCD, weights.up, uses), weights.up_bias)
    return _with_bias(times(gated(gate_UCF, up_UCF, gate), weights.down, uses), weights.down_bias)


def _with_bias(y_UCF: jax.Array, bias_UF: jax.Array | None) -> jax.Array:
    return y_UCF if bias_UF is None else y_UCF + bias_UF[:, None]


class _Rows(NamedTuple):
    """All rows. expert_A: the expert of each row; there are K rows per token. room: the capacity of
    each expert in the first block."""

    expert_A: jax.Array
    ranks: Ranks
    per_token: int
    room: int


class _Block(NamedTuple):
    """The rows that are computed at once: C places for each of the experts `expert_U`.

    row_UC: the row in each place, or a number from A on, different for each, where the place is
    empty. place_A: the place of each row, or U*C if it is not in this block.

    Example: five rows, which go to the experts 0, 1, 0, 0, 1, and C = 2. The first block has the
    experts 0 and 1, row_UC = [[0, 2], [1, 4]] and place_A = [0, 2, 1, 4, 3]: row 3 is the third of
    expert 0 and finds no place. It follows in a round of expert 0 alone, with row_UC = [[3, 6]] (6
    for an empty place) and place_A = [2, 2, 2, 0, 2].
    """

    expert_U: jax.Array
    row_UC: jax.Array
    place_A: jax.Array

    def tokens(self, x_TD: jax.Array, rows: _Rows) -> jax.Array:
        """[U,C,D]; 0 where a place is empty."""
        return x_TD.at[self.row_UC // rows.per_token].get(mode="fill", fill_value=0)

    def weights(self, weights: Weights, rows: _Rows) -> Weights:
        return weights.moved(lambda uses_Tr: self.tokens(uses_Tr, rows))

    def take(self, y_AD: jax.Array) -> jax.Array:
        return y_AD.at[self.row_UC].get(mode="fill", fill_value=0)

    def rows_of(self, y_UCD: jax.Array) -> jax.Array:
        """[A,D]; 0 for a row that is not in this block."""
        y_YD = y_UCD.reshape(-1, y_UCD.shape[-1])
        return y_YD.at[self.place_A].get(mode="fill", fill_value=0)

    def put(self, y_AD: jax.Array, y_UCD: jax.Array) -> jax.Array:
        y_YD = y_UCD.reshape(-1, y_UCD.shape[-1])
        return y_AD.at[self.row_UC.reshape(-1)].set(y_YD, mode="drop", unique_indices=True)


def _rows(weights: Weights, expert_TK: jax.Array) -> _Rows:
    E, expert_A = weights.gate.shape[0], expert_TK.reshape(-1)
    room = _in_tiles(expert_A.shape[0] * SLACK / E)
    return _Rows(expert_A, ranks(expert_A, E), expert_TK.shape[1], room)


def _in_tiles(rows: float) -> int:
    return math.ceil(rows / _TILE) * _TILE


def _first_block(rows: _Rows) -> _Block:
    """The first C rows of every expert."""
    counts = rows.ranks.counts
    return _block(rows, jnp.arange(counts.shape[0]), jnp.zeros_like(counts), rows.room)


def _in_rounds(rows: _Rows, add_round: Callable[[Total, _Block], Total], total: Total) -> Total:
    """add_round: (total, block) -> total. Each row beyond the first block is in one round."""
    E, C = rows.ranks.counts.shape[0], _in_tiles(rows.room / _ROUND_ROOM)

    def has_rows_left(state):
        done_E, _ = state
        return (done_E < rows.ranks.counts).any()

    def next_round(state):
        done_E, total = state
        _, expert_U = jax.lax.top_k(rows.ranks.counts - done_E, max(1, E // _ROUND_EXPERTS))
        total = add_round(total, _block(rows, expert_U, done_E, C))
        return done_E.at[expert_U].add(C), total

    done_E = jnp.full_like(rows.ranks.counts, rows.room)
    return jax.lax.while_loop(has_rows_left, next_round, (done_E, total))[1]


def _block(rows: _Rows, expert_U: jax.Array, done_E: jax.Array, C: int) -> _Block:
    """The C rows of each of these experts from `done_E` on."""
    (E,), U, A = done_E.shape, expert_U.shape[0], rows.expert_A.shape[0]
    offset_C = jnp.arange(C)[None]
    sorted_UC = (rows.ranks.starts + done_E)[expert_U][:, None] + offset_C
    is_row_UC = offset_C < (rows.ranks.counts - done_E)[expert_U][:, None]
    empty_UC = A + jnp.arange(U * C).reshape(U, C)
    row_UC = jnp.where(is_row_UC, rows.ranks.order_A.at[sorted_UC].get(mode="clip"), empty_UC)

    is_slot_EU = jnp.arange(E)[:, None] == expert_U[None]
    slot_E = jnp.where(is_slot_EU.any(axis=1), is_slot_EU.argmax(axis=1), U)
    slot_A = slot_E.at[rows.expert_A].get(mode="fill", fill_value=U)
    offset_A = rows.ranks.rank_A - done_E.at[rows.expert_A].get(mode="fill", fill_value=0)
    is_here_A = (slot_A < U) & (offset_A >= 0) & (offset_A < C)
    return _Block(expert_U, row_UC, jnp.where(is_here_A, slot_A * C + offset_A, U * C))


_ROWS = 16  # mean rows per expert up to which the tokens are few
_READING = 256  # tokens up to which an accelerator reads weights for longer than it multiplies


def are_few(tokens: int, chosen: int, num_experts: int) -> bool:
    """Returns whether there are so few tokens, with `chosen` experts each, that devices which share
    the experts gather them instead of sending each where it is wanted."""
    return tokens * chosen <= _ROWS * num_experts


def all_are_faster(tokens: int, chosen: int, num_experts: int) -> bool:
    """Returns whether `all_experts` is faster than `capacity_dispatch` for so many tokens."""
    if current_device().platform == "cpu":  # of an expert's rows, it multiplies a tile in any case
        return tokens <= _TILE
    return tokens <= _READING and are_few(tokens, chosen, num_experts)


def all_experts(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array, gate: Gate
) -> jax.Array:
    """Computes the weighted sum of the feed-forwards of each token's K experts, [T,D]. Expert E,
    one past the last, contributes nothing."""
    # One product per expert: for a joint product CPUs would first transpose the weights.
    x_ETD = jnp.broadcast_to(x_TD[None], (weights.gate.shape[0], *x_TD.shape))
    y_ETD = _feed_forward(weights, x_ETD, gate)
    weight_ET = _by_expert(weight_TK, expert_TK, len(y_ETD))
    # The outputs are weighted, as those of `capacity_dispatch` are, so that both functions round
    # alike in bfloat16.
    return jnp.einsum("etd,et->td", y_ETD, weight_ET)


def _by_expert(weight_TK: jax.Array, expert_TK: jax.Array, E: int) -> jax.Array:
    """The weight of each expert for each token, [E,T]; 0 where it was not chosen."""
    chosen_TKE = jax.nn.one_hot(expert_TK, E, dtype=weight_TK.dtype)
    return jnp.einsum("tk,tke->et", weight_TK, chosen_TKE)


_TOUCHED = 2 / 3  # share of the experts up to which a CPU is faster with one after another


def leaves_out(weights: Weights, tokens: int, chosen: int) -> bool:
    """Returns whether `chosen_experts` is faster than the other ways for so many tokens: where the
    platform has a kernel for them; on a CPU if each, with `chosen` experts at random, leaves so
    many out, and the others multiply fewer rows than the tiles of `capacity_dispatch` have."""
    platform, E = current_device().platform, weights.gate.shape[0]
    if platform == "cpu":
        touched = 1 - (1 - chosen / E) ** tokens
        return touched < _TOUCHED and touched * tokens <= _TILE
    return has_kernel(platform, tokens, *weights[:3])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def chosen_experts(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array, gate: Gate
) -> jax.Array:
    """Computes what `all_experts` does, and reads the weights of those experts alone that a token
    chose: on a CPU one after another."""
    E = weights.gate.shape[0]
    weight_ET = _by_expert(weight_TK, expert_TK, E)
    counts_E = jnp.bincount(expert_TK.reshape(-1), length=E)
    platform = current_device().platform
    if platform != "cpu":
        return by_kernel(weights, x_TD, weight_ET, counts_E > 0, gate, platform)
    order_E = jnp.argsort(counts_E == 0)

    def add_expert(i: jax.Array, out_TD: jax.Array) -> jax.Array:
        expert_1 = order_E[i][None]
        part = weights.of(expert_1).loaded(x_TD.dtype)
        y_1TD = _feed_forward(part, x_TD[None], gate)
        return out_TD + (y_1TD * weight_ET[expert_1][..., None])[0]

    nothing_TD = jnp.zeros(x_TD.shape, jnp.float32)
    out_TD = jax.lax.fori_loop(0, (counts_E > 0).sum(), add_expert, nothing_TD)
    return out_TD.astype(x_TD.dtype)


def by_kernel(
    weights: Weights,
    x_TD: jax.Array,
    weight_ET: jax.Array,
    is_chosen_E: jax.Array,
    gate: Gate,
    platform: str,
    interpret: bool = False,
) -> jax.Array:
    """Computes `chosen_experts` by a platform's kernel. interpret: as in `chosen_product`."""

    def base(x_UTD: jax.Array, weight: Weight) -> jax.Array:
        return chosen_product(x_UTD, weight, is_chosen_E, platform, interpret=interpret)

    def times(x_UTD: jax.Array, weight: Stack, uses: jax.Array | None) -> jax.Array:
        if not isinstance(weight, Adapted):
            return base(x_UTD, weight)
        every_ETD = jnp.broadcast_to(x_UTD, (len(is_chosen_E), *x_UTD.shape[1:]))
        inner_ETr = used(product(every_ETD, weight.a), uses)
        return base(x_UTD, weight.base) + product(inner_ETr, weight.b)

    y_ETD = _feed_forward(weights, x_TD[None], gate, times)
    return jnp.einsum("etd,et->td", y_ETD, weight_ET)


def _chosen_forward(weights, x_TD, weight_TK, expert_TK, gate: Gate):
    kept = weights, x_TD, weight_TK, expert_TK
    return chosen_experts(*kept, gate), kept


def _chosen_backward(gate: Gate, kept, d_out_TD):
    weights, x_TD, weight_TK, expert_TK = kept
    compute = functools.partial(all_experts, expert_TK=expert_TK, gate=gate)
    _, pull = jax.vjp(compute, weights, x_TD, weight_TK)
    return *pull(d_out_TD), None


chosen_experts.defvjp(_chosen_forward, _chosen_backward)
