"""The states of recurrent layers in the engine: one for each slot, on the shard that has it.

Their heads, or channels, are sharded as the heads of pages are. A state begins with zeros at
position 0 of a conversation, so a slot need not be cleared before it is used again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ale_jax.config.architecture import GatedDelta, Layer, Recurrent, ShortConv
from ale_jax.model.cache import on_each_shard, place
from ale_jax.model.delta_layer import DeltaState, extended_delta
from ale_jax.model.params import Params
from ale_jax.model.short_conv import ConvState, extended_conv

State = DeltaState | ConvState  # of conversations in one layer


def empty_states(kind: Recurrent, slots: int) -> State:
    """Returns the states of slots in which there is no conversation, float32."""
    if isinstance(kind, GatedDelta):
        return DeltaState.zeros(slots, kind, jnp.float32)
    return ConvState.zeros(slots, kind, jnp.float32)


def state_sharding(mesh: AbstractMesh | Mesh) -> NamedSharding:
    """Returns the sharding of the states of all slots."""
    return NamedSharding(mesh, place("BN", mesh))


def copied_sharding(mesh: AbstractMesh | Mesh) -> NamedSharding:
    """Returns the sharding of what `copy_states_out` takes."""
    return NamedSharding(mesh, place("BxN", mesh))


@struct.dataclass
class InStates:
    """The states of all slots. slot_B: the slots of the conversations that are extended, each at
    most once among those that have new tokens; None: all slots, in order."""

    states: State
    slot_B: jax.Array | None

    def mix(
        self, layer: Params, h_BTD: jax.Array, position_BT: jax.Array, is_real_BT: jax.Array, kind
    ) -> tuple[jax.Array, InStates]:
        """Returns what the mixer makes of new tokens, [B,T,D], and the states after them."""
        assert isinstance(kind, Layer) and isinstance(kind.mixer, Recurrent)
        old = self.states if self.slot_B is None else _take(self.states, self.slot_B)
        has_new_B = is_real_BT[:, 0]
        begins_B = has_new_B & (position_BT[:, 0] == 0)
        old = jax.tree.map(lambda x: jnp.where(_like(begins_B, x), 0, x), old)
        out_BTD, new = _extended(layer, h_BTD, is_real_BT, old, kind)
        if self.slot_B is None:
            return out_BTD, dataclasses.replace(self, states=_as_kept(new))
        states = _put(self.states, self.slot_B, has_new_B, new)
        return out_BTD, dataclasses.replace(self, states=states)


def _extended(
    layer: Params, h_BTD: jax.Array, is_real_BT: jax.Array, state: State, kind: Layer
) -> tuple[jax.Array, State]:
    if isinstance(state, DeltaState):
        assert isinstance(kind.mixer, GatedDelta)
        return extended_delta(layer, h_BTD, is_real_BT, state, kind.mixer, kind.norm.eps)
    assert isinstance(kind.mixer, ShortConv)
    return extended_conv(layer, h_BTD, is_real_BT, state, kind.mixer)


def _like(flag_B: jax.Array, x: jax.Array) -> jax.Array:
    return flag_B.reshape(-1, *[1] * (x.ndim - 1))


def _as_kept(states: State) -> State:
    """The same, placed as the next dispatch expects them."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return states
    return jax.lax.with_sharding_constraint(states, state_sharding(mesh))


@on_each_shard("BN B -> BN")
def _take(states: State, slot_B: jax.Array) -> State:
    return jax.tree.map(lambda x: x[slot_B % len(x)], states)


@on_each_shard("BN B B BN -> BN")
def _put(states: State, slot_B: jax.Array, has_new_B: jax.Array, new: State) -> State:
    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        slots = len(x)
        return x.at[jnp.where(has_new_B, slot_B % slots, slots)].set(new, mode="drop")

    return jax.tree.map(put, states, new)


def states_of(cache: Sequence[Any]) -> list[State]:
    """Returns what a cache keeps of recurrent layers."""
    return [kept for kept in cache if isinstance(kept, State)]


@jax.jit
def copy_states_out(states: list[State], slot_ZX: jax.Array) -> list[State]:
    """Returns the states of slots, [Z,X,...]. Z: the data shards, which number their own slots."""

    @on_each_shard("BN B -> BxN")
    def take(states: State, slot_ZX: jax.Array) -> State:
        return jax.tree.map(lambda x: x[slot_ZX], states)

    return [take(each, slot_ZX) for each in states]


@functools.partial(jax.jit, donate_argnames="states")
def copy_states_in(states: list[State], slot_ZX: jax.Array, copied: list[State]) -> list[State]:
    """Puts what `copy_states_out` took into slots, to the last bit. Slots that do not exist are
    dropped."""

    @on_each_shard("BN B BxN -> BN")
    def put(states: State, slot_ZX: jax.Array, copied: State) -> State:
        def one(x: jax.Array, new_ZX: jax.Array) -> jax.Array:
            new = new_ZX.reshape(-1, *x.shape[1:])
            return x.at[slot_ZX.reshape(-1)].set(new, mode="drop")

        return jax.tree.map(one, states, copied)

    return [put(*each) for each in zip(states, [slot_ZX] * len(states), copied, strict=True)]
