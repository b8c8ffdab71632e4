"""Experts spread over the mesh axis "expert": tokens are sent to their experts, and outputs sent
back.

These functions run inside `jax.shard_map`: arrays are one device's share, and each device holds an
equal share of the experts. An all-to-all has room for SLACK times the mean number of rows between
two devices. Where routing is less even, further rounds follow until all rows have been sent, so no
token is dropped.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Gate
from ale_jax.model.capacity_dispatch import (
    SLACK,
    Ranks,
    Weights,
    all_are_faster,
    all_experts,
    capacity_dispatch,
    chosen_experts,
    ranks,
    weighted_sum,
)
from ale_jax.model.chosen_product import has_kernel
from ale_jax.model.sharding import current_device

AXIS = "expert"


def own_share(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array, gate: Gate
) -> jax.Array:
    """Returns what this device's experts contribute to tokens that every device of the axis has,
    [T,D]."""
    held = weights.gate.shape[0]
    expert_TK = expert_TK - jax.lax.axis_index(AXIS) * held
    expert_TK = jnp.where((expert_TK >= 0) & (expert_TK < held), expert_TK, held)
    T, K = expert_TK.shape
    if has_kernel(current_device().platform, T, *weights[:3]):
        return chosen_experts(weights, x_TD, weight_TK, expert_TK, gate)
    weights = weights.loaded(x_TD.dtype)
    if all_are_faster(T, K, held):
        return all_experts(weights, x_TD, weight_TK, expert_TK, gate)
    return weighted_sum(capacity_dispatch(weights, x_TD, expert_TK, gate), weight_TK)


def gathered(
    weights: Weights, x_TD: jax.Array, weight_TK: jax.Array, expert_TK: jax.Array, gate: Gate
) -> jax.Array:
    """Returns what all experts contribute to this device's own tokens, [T,D], if there are few
    tokens, as in a decode step: the tokens of all devices of the axis are gathered on each of them.

    The weights are then read once, and no device waits for rounds. The sum is rounded once, after
    its last term, as it is after `exchanged`.
    """
    gather = functools.partial(jax.lax.all_gather, axis_name=AXIS, tiled=True)
    tokens = x_TD, weight_TK.astype(jnp.float32), expert_TK
    x_TD, weight_TK, expert_TK = map(gather, tokens)
    share_TD = own_share(weights.moved(gather), x_TD, weight_TK, expert_TK, gate)
    return jax.lax.psum_scatter(share_TD, AXIS, tiled=True).astype(x_TD.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def exchanged(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array, gate: Gate) -> jax.Array:
    """As `capacity_dispatch.capacity_dispatch`, [T,K,D], for tokens of this device's own and any
    experts.

    The gradient is written by hand, because the rounds are a loop of unknown length. In the
    backward pass the tokens are sent again.
    """
    journey = _journey(expert_TK, weights.gate.shape[0])

    def add_round(y_AD: jax.Array, trip: _Trip) -> jax.Array:
        x_YD, expert_Y1 = trip.tokens(x_TD, journey), trip.experts(journey)
        there = weights.moved(lambda uses_Tr: trip.tokens(uses_Tr, journey))
        y_YD = capacity_dispatch(there, x_YD, expert_Y1, gate)[:, 0]
        return trip.put(y_AD, trip.there(y_YD))

    T, K = expert_TK.shape
    zero_AD = jnp.zeros((T * K, x_TD.shape[1]), x_TD.dtype)
    return _in_rounds(journey, add_round, zero_AD).reshape(T, K, -1)


def _forward(weights: Weights, x_TD: jax.Array, expert_TK: jax.Array, gate: Gate):
    kept = weights, x_TD, expert_TK
    return exchanged(*kept, gate), kept


def _backward(gate: Gate, kept, dy_TKD: jax.Array):
    weights, x_TD, expert_TK = kept
    (T, K, D), journey = dy_TKD.shape, _journey(expert_TK, weights.gate.shape[0])
    dy_AD = dy_TKD.reshape(T * K, D)

    def add_round(total: tuple[Weights, jax.Array], trip: _Trip):
        d_weights, dx_AD = total
        x_YD, expert_Y1 = trip.tokens(x_TD, journey), trip.experts(journey)
        _, pull = jax.vjp(
            lambda w, x: capacity_dispatch(w, x, expert_Y1, gate)[:, 0], weights, x_YD
        )
        more, dx_YD = pull(trip.there(trip.take(dy_AD)))
        return jax.tree.map(jnp.add, d_weights, more), trip.put(dx_AD, trip.there(dx_YD))

    zeros = jax.tree.map(jnp.zeros_like, weights), jnp.zeros_like(dy_AD)
    d_weights, dx_AD = _in_rounds(journey, add_round, zeros)
    return d_weights, dx_AD.reshape(T, K, D).sum(axis=1), None


exchanged.defvjp(_forward, _backward)


class _Journey(NamedTuple):
    """The routing of all rows.

    expert_A: each row's expert, numbered among the experts of its device. by_device: the order of
    the rows by device. rounds: how many rounds send all rows. It is the same on all devices of the
    axis, which would otherwise wait for each other forever. held: experts of each device. room:
    rows that are sent at once to each device.
    """

    expert_A: jax.Array
    by_device: Ranks
    rounds: jax.Array
    held: int
    per_token: int
    room: int


class _Trip(NamedTuple):
    """One round. row_Y: the row in each place, or a number from A on where the place is empty.
    Places are ordered by device, so what is sent back arrives in the place that it was sent from.
    """

    row_Y: jax.Array

    def tokens(self, x_TD: jax.Array, journey: _Journey) -> jax.Array:
        """[Y,D] as received. The content of an empty place goes to no expert."""
        return self.there(x_TD.at[self.row_Y // journey.per_token].get(mode="clip"))

    def there(self, x_YD: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x_YD, AXIS, split_axis=0, concat_axis=0, tiled=True)

    def experts(self, journey: _Journey) -> jax.Array:
        """[Y,1] as received."""
        sent_Y = journey.expert_A.at[self.row_Y].get(mode="fill", fill_value=journey.held)
        return self.there(sent_Y)[:, None]

    def take(self, y_AD: jax.Array) -> jax.Array:
        return y_AD.at[self.row_Y].get(mode="fill", fill_value=0)

    def put(self, y_AD: jax.Array, y_YD: jax.Array) -> jax.Array:
        return y_AD.at[self.row_Y].set(y_YD, mode="drop", unique_indices=True)


def _journey(expert_TK: jax.Array, held: int) -> _Journey:
    devices, expert_A = jax.lax.axis_size(AXIS), expert_TK.reshape(-1)
    device_A = expert_A // held
    by_device = ranks(device_A, devices)
    room = int(-(-expert_A.shape[0] * SLACK // devices))
    rounds = jax.lax.pmax(-(-by_device.counts.max() // room), AXIS)
    return _Journey(expert_A % held, by_device, rounds, held, expert_TK.shape[1], room)


def _in_rounds(journey: _Journey, add_round, total):
    """add_round: (total, trip) -> total. Each row is in exactly one trip."""

    def next_round(state):
        number, total = state
        return number + 1, add_round(total, _trip(journey, number))

    return jax.lax.while_loop(lambda state: state[0] < journey.rounds, next_round, (0, total))[1]


def _trip(journey: _Journey, number: jax.Array) -> _Trip:
    by_device, C = journey.by_device, journey.room
    seat_C, done = jnp.arange(C)[None], number * C
    sorted_UC = by_device.starts[:, None] + done + seat_C
    is_row_UC = seat_C < by_device.counts[:, None] - done
    empty_UC = by_device.order_A.shape[0] + jnp.arange(is_row_UC.size).reshape(is_row_UC.shape)
    row_UC = jnp.where(is_row_UC, by_device.order_A.at[sorted_UC].get(mode="clip"), empty_UC)
    return _Trip(row_UC.reshape(-1))
