"""What the engine keeps of conversations in a layer, by the kind of its mixer. All choices by kind
that the engine's programs make are here.

Attention: keys and values in pages. Latent attention: latents in pages. Recurrent mixers: a state
for each slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ale_jax.config.architecture import Attention, Latent, Layer, Mixer, PolicyShape, Recurrent
from ale_jax.model.cache import Pages, empty_pages, page_sharding
from ale_jax.model.compute import USES
from ale_jax.model.kv_memory import InPages, InRows
from ale_jax.model.latent import absorbed_queries, stored_latents, values_of
from ale_jax.model.layers import project_out, project_qkv
from ale_jax.model.page_attention import reads_in_place
from ale_jax.model.paged_attention import has_kernel
from ale_jax.model.params import Params
from ale_jax.model.state_memory import InStates, State, empty_states, state_sharding

Kept = Pages | State  # of all conversations in one layer
Cache = list[Kept]
Memory = InPages | InRows | InStates  # of the conversations in one layer, while they are extended


class Conversations(NamedTuple):
    """The conversations of a call: the pages of each, and where they are extended from.

    page_BW: the pages of each. position_B: of its next token. slot_B: its slot; None: they are
    those of all slots, in order.
    """

    page_BW: jax.Array
    position_B: jax.Array
    slot_B: jax.Array | None = None


class NewTokens(NamedTuple):
    """position_BT: in the conversation. is_real_BT: whether the token is kept; others are
    padding."""

    position_BT: jax.Array
    is_real_BT: jax.Array


def empty_cache(
    shape: PolicyShape,
    num_pages: int,
    page_tokens: int,
    dtype: jnp.dtype = jnp.float32,
    num_slots: int = 0,
    platform: str = "cpu",
) -> Cache:
    """Returns a cache of zeros. dtype: of pages; int8: symmetric quantisation, with one scale per
    token and head. num_slots: as many as recurrent layers have states. platform: of the programs
    that use it. ValueError for layers that cannot be kept in this form."""

    def empty(mixer: Mixer) -> Kept:
        if isinstance(mixer, Recurrent):
            return empty_states(mixer, num_slots)
        return empty_pages(mixer, num_pages, page_tokens, dtype, platform)

    return [empty(layer.mixer) for layer in shape.layers]


def cache_shardings(shape: PolicyShape, mesh: AbstractMesh | Mesh) -> list[NamedSharding]:
    """Returns the sharding of what is kept of each layer, which holds for all of its arrays."""
    return [
        state_sharding(mesh) if isinstance(mixer, Recurrent) else page_sharding(mixer, mesh)
        for mixer in (layer.mixer for layer in shape.layers)
    ]


def in_prefill(kind: Layer, kept: Kept, held: Conversations, platform: str) -> Memory:
    """Returns the memory of a layer for chunks of context."""
    if isinstance(kept, State):
        return InStates(kept, held.slot_B)
    return InPages(kept, held.page_BW, platform)


def in_decode(kind: Layer, kept: Kept, held: Conversations, tokens: int, platform: str) -> Memory:
    """Returns the memory of a layer for decode steps of all slots. tokens: that these write."""
    if isinstance(kept, State):
        return InStates(kept, None)
    conversations, pages = held.page_BW.shape
    in_place = reads_in_place(platform, conversations, pages * kept.page_tokens)
    if in_place or has_kernel(platform, kept, kind.mixer):
        return InPages(kept, held.page_BW, platform)
    return InRows.gather(kept, held.page_BW, held.position_B, tokens)


def kept(memory: Memory, before: Kept, held: Conversations) -> Kept:
    """Returns what is kept of a layer's memory. before: what was kept of the layer. held: at the
    end."""
    if isinstance(memory, InStates):
        return memory.states
    if isinstance(memory, InRows):
        assert not isinstance(before, State), "rows are of pages"
        return memory.scatter(before, held.page_BW, held.position_B)
    return memory.pages


def mix(
    layer: Params, h_BTD: jax.Array, memory: Memory, new: NewTokens, kind: Layer
) -> tuple[jax.Array, Memory]:
    """Returns what a layer's mixer makes of new tokens and its memory, [B,T,D], and the memory with
    these tokens."""
    if isinstance(memory, InStates):
        return memory.mix(layer, h_BTD, *new, kind)
    if isinstance(kind.mixer, Latent):
        q_BTNO = absorbed_queries(layer, h_BTD, new.position_BT, kind.mixer)
        stored_BTO = stored_latents(layer, h_BTD, new.position_BT, kind.mixer)
        q_BTNO, stored_BTO = (_widened(x, memory.width) for x in (q_BTNO, stored_BTO))
        memory = memory.write(*new, *_stored(layer, stored_BTO))
        out_BTNO = memory.attend(q_BTNO, *new, kind.mixer.expanded)
        out_BTNH = values_of(layer, out_BTNO, kind.mixer)
    else:
        assert isinstance(kind.mixer, Attention), "others have a memory of their own"
        q, k, v = project_qkv(layer, h_BTD, new.position_BT, kind)
        memory = memory.write(*new, *_stored(layer, k, v))
        out_BTNH = memory.attend(q, *new, kind.mixer, layer.get("sink_N"))
    return project_out(layer, out_BTNH, h_BTD, kind.mixer), memory


def _widened(x: jax.Array, width: int) -> jax.Array:
    """x with zeros behind it in its last dim, which add nothing to a product."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _stored(layer: Params, *new_BTGH: jax.Array) -> Sequence[jax.Array]:
    """What is stored of new tokens: finite, if there are several adapters. A page is not cleared
    before others use it, and attention with a weight of 0 to inf or nan gives nan."""
    return list(map(jnp.nan_to_num, new_BTGH)) if USES in layer else new_BTGH
