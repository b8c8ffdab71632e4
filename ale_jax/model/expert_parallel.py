"""Experts spread over the mesh axis "expert": tokens travel to theirs, and the outputs back.

These functions run inside `jax.shard_map`: arrays are one device's share, of E experts it holds
E/P. An all-to-all has room for SLACK times the mean number of rows between two devices; where
routing is less even, further rounds follow until all rows have travelled: no token is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.model.capacity_dispatch import (
    SLACK,
    Ranks,
    Weights,
    all_experts,
    are_few,
    capacity_dispatch,
    ranks,
    weighted_sum,
)

AXIS = "expert"


def own_share(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """What this device's experts add to tokens that every device of the axis has, [T,D]."""
    held = weights[0].shape[0]
    expert_TK = expert_TK - jax.lax.axis_index(AXIS) * held
    expert_TK = jnp.where((expert_TK >= 0) & (expert_TK < held), expert_TK, held)
    if are_few(*expert_TK.shape, held):
        return all_experts(weights, x_TD, weight_TK, expert_TK)
    return weighted_sum(capacity_dispatch(weights, x_TD, expert_TK), weight_TK)


def gathered(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array
) -> jax.Array:
    """What all experts add to this device's own tokens, [T,D], if these are few, as in a decode
    step: every device of the axis sees the tokens of all. Then the weights are read once, and
    nobody waits for rounds. The sum is rounded once, behind its last term, as behind `exchanged`.
    """
    tokens = x_TD, weight_TK.astype(jnp.float32), expert_TK
    everyones = (jax.lax.all_gather(each, AXIS, tiled=True) for each in tokens)
    share_TD = own_share(weights, *everyones)
    return jax.lax.psum_scatter(share_TD, AXIS, tiled=True).astype(x_TD.dtype)


@jax.custom_vjp
def exchanged(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array) -> jax.Array:
    """As `capacity_dispatch.capacity_dispatch`, [T,K,D], for tokens of this device's own and any
    experts.

    The gradient is written out: the rounds are a loop of unknown length. The tokens travel again.
    """
    journey = _journey(expert_TK, weights[0].shape[0])

    def add_round(y_RD: jax.Array, trip: _Trip) -> jax.Array:
        x_SD, expert_S1 = trip.tokens(x_TD, journey), trip.experts(journey)
        return trip.put(y_RD, trip.there(capacity_dispatch(weights, x_SD, expert_S1)[:, 0]))

    T, K = expert_TK.shape
    zero_RD = jnp.zeros((T * K, x_TD.shape[1]), x_TD.dtype)
    return _in_rounds(journey, add_round, zero_RD).reshape(T, K, -1)


def _forward(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array):
    kept = weights, x_TD, expert_TK
    return exchanged(*kept), kept


def _backward(kept, dy_TKD: jax.Array):
    weights, x_TD, expert_TK = kept
    (T, K, D), journey = dy_TKD.shape, _journey(expert_TK, weights[0].shape[0])
    dy_RD = dy_TKD.reshape(T * K, D)

    def add_round(total: tuple[Weights, jax.Array], trip: _Trip):
        d_weights, dx_RD = total
        x_SD, expert_S1 = trip.tokens(x_TD, journey), trip.experts(journey)
        _, pull = jax.vjp(lambda w, x: capacity_dispatch(w, x, expert_S1)[:, 0], weights, x_SD)
        more, dx_SD = pull(trip.there(trip.take(dy_RD)))
        return jax.tree.map(jnp.add, d_weights, more), trip.put(dx_RD, trip.there(dx_SD))

    zeros = jax.tree.map(jnp.zeros_like, weights), jnp.zeros_like(dy_RD)
    d_weights, dx_RD = _in_rounds(journey, add_round, zeros)
    return d_weights, dx_RD.reshape(T, K, D).sum(axis=1), None


exchanged.defvjp(_forward, _backward)


class _Journey(NamedTuple):
    """Of all rows: the expert there (its number among those of its device), and their order by
    devices; how many rows travel at once to each device, and in how many rounds all do. The last
    is the same on all devices of the axis, or they would wait for each other for ever."""

    expert_R: jax.Array
    by_device: Ranks
    rounds: jax.Array
    held: int
    per_token: int
    room: int


class _Trip(NamedTuple):
    """One round: the row on each seat [P*C], or a number from R on where it stays empty. Seats are
    in order of devices, so what is sent back lands on the seat that it left from."""

    row_S: jax.Array

    def tokens(self, x_TD: jax.Array, journey: _Journey) -> jax.Array:
        """[P*C,D] as they arrive. What an empty seat brings goes to the expert that is none."""
        return self.there(x_TD.at[self.row_S // journey.per_token].get(mode="clip"))

    def there(self, x_SD: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x_SD, AXIS, split_axis=0, concat_axis=0, tiled=True)

    def experts(self, journey: _Journey) -> jax.Array:
        """[P*C,1] as they arrive."""
        sent_S = journey.expert_R.at[self.row_S].get(mode="fill", fill_value=journey.held)
        return self.there(sent_S)[:, None]

    def take(self, y_RD: jax.Array) -> jax.Array:
        return y_RD.at[self.row_S].get(mode="fill", fill_value=0)

    def put(self, y_RD: jax.Array, y_SD: jax.Array) -> jax.Array:
        return y_RD.at[self.row_S].set(y_SD, mode="drop", unique_indices=True)


def _journey(expert_TK: jax.Array, held: int) -> _Journey:
    devices, expert_R = jax.lax.axis_size(AXIS), expert_TK.reshape(-1)
    device_R = expert_R // held
    by_device = ranks(device_R, devices)
    room = int(-(-expert_R.shape[0] * SLACK // devices))
    rounds = jax.lax.pmax(-(-by_device.count_E.max() // room), AXIS)
    return _Journey(expert_R % held, by_device, rounds, held, expert_TK.shape[1], room)


def _in_rounds(journey: _Journey, add_round, total):
    """add_round: (total, trip) -> total. Each row is in exactly one trip."""

    def next_round(state):
        number, total = state
        return number + 1, add_round(total, _trip(journey, number))

    return jax.lax.while_loop(lambda state: state[0] < journey.rounds, next_round, (0, total))[1]


def _trip(journey: _Journey, number: jax.Array) -> _Trip:
    by_device, C = journey.by_device, journey.room
    seat_C, done = jnp.arange(C)[None], number * C
    sorted_PC = by_device.start_E[:, None] + done + seat_C
    is_row_PC = seat_C < by_device.count_E[:, None] - done
    empty_PC = by_device.order_R.shape[0] + jnp.arange(is_row_PC.size).reshape(is_row_PC.shape)
    row_PC = jnp.where(is_row_PC, by_device.order_R.at[sorted_PC].get(mode="clip"), empty_PC)
    return _Trip(row_PC.reshape(-1))
