"""States that are swapped out to the host's memory with the pages of their conversations, and back
in, to the last bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.model.memory import Cache
from ale_jax.model.state_memory import (
    State,
    copied_sharding,
    copy_states_in,
    copy_states_out,
    states_of,
)

States = list[State]  # of a conversation, each array without a dim for slots


@dataclasses.dataclass(frozen=True)
class _StateSwap:
    """slot: in the shard's own numbers. keep: what is done with the states once they are here.
    states: what is put into the slot."""

    slot: int
    keep: Callable[[States], None] | None = None
    states: Sequence[Any] = ()


class StateSwaps:
    """What one dispatch swaps of states before it computes: out of slots, then into others. Does
    nothing for a policy without states. A program is compiled for each power of two."""

    def __init__(self, slots: int, shards: int):
        """slots: of each shard."""
        self._slots = slots
        self._out: list[list[_StateSwap]] = [[] for _ in range(shards)]
        self._in: list[list[_StateSwap]] = [[] for _ in range(shards)]

    def swap_out(self, shard: int, slot: int, keep: Callable[[States], None]) -> None:
        self._out[shard].append(_StateSwap(slot % self._slots, keep))

    def swap_in(self, shard: int, slot: int, states: States) -> None:
        self._in[shard].append(_StateSwap(slot % self._slots, states=states))

    def begin_out(self, cache: Cache) -> States:
        """Dispatches the copies out of the cache. Returns them, each array [Z,X,...]."""
        states = states_of(cache)
        if not (states and any(self._out)):
            return []
        return copy_states_out(states, self._places(self._out, filler=0))

    def begin_in(self, cache: Cache, mesh: Mesh | None) -> Cache:
        """Dispatches the copies into the cache, and returns it."""
        states = states_of(cache)
        if not (states and any(self._in)):
            return cache
        content = self._content(states)
        if mesh is not None:
            content = jax.device_put(content, copied_sharding(mesh))
        places = self._places(self._in, filler=self._slots)
        filled = iter(copy_states_in(states, places, content))
        return [next(filled) if isinstance(kept, State) else kept for kept in cache]

    def finish(self, copied: States) -> None:
        """Hands over what `begin_out` has copied, which is on the host by now."""
        for shard, swaps in enumerate(self._out if copied else []):
            for number, swap in enumerate(swaps):
                assert swap.keep is not None, "states are swapped out for somebody"
                swap.keep(jax.tree.map(lambda x, at=(shard, number): x[at].copy(), copied))

    def _places(self, swaps: list[list[_StateSwap]], filler: int) -> np.ndarray:
        slot_ZX = np.full((len(swaps), self._width(swaps)), filler, np.int32)
        for shard, each in enumerate(swaps):
            slot_ZX[shard, : len(each)] = [swap.slot for swap in each]
        return slot_ZX

    def _content(self, states: States) -> States:
        """What is put in, each array [Z,X,...]."""
        size = len(self._in), self._width(self._in)
        content = jax.tree.map(lambda x: np.zeros((*size, *x.shape[1:]), x.dtype), states)
        for shard, swaps in enumerate(self._in):
            for number, swap in enumerate(swaps):
                pairs = zip(*map(jax.tree.leaves, (content, swap.states)), strict=True)
                for array, own in pairs:
                    array[shard, number] = own
        return content

    def _width(self, swaps: list[list[_StateSwap]]) -> int:
        """How many states are copied of each shard, some of them for nothing."""
        return min(1 << (max(map(len, swaps)) - 1).bit_length(), self._slots)
