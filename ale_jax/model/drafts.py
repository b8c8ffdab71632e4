"""Drafts of the next tokens, found in what the conversation has said (prompt lookup): agents repeat
commands, names of files, and code.

A draft is what followed the last occurrence of the two newest ids. One pass through the policy
verifies the drafts of all slots; it costs more than a step of one token each. It is run where the
tokens that the drafts are expected to save are worth that, by the share of drafted tokens that were
right lately in each conversation. Drafts that are not verified are compared with the next token,
too, so that this share is known when a conversation begins to repeat itself.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ale_jax.model.sampler import SlotState
from ale_jax.model.sharding import num_data_shards

NEWEST = 0.1  # share of the newest drafted token in the mean
# How many tokens, side by side in a pass, take as long as reading the weights does. By platform: on
# two cores passes of 5 tokens of 1, 4 and 16 conversations took 1.3, 1.9 and 2.7 steps, and each
# token that is right is drawn, too. Accelerators do about as many sums for each byte.
FREE_TOKENS = {"cpu": 10}
ON_ACCELERATORS = 256


@struct.dataclass
class Said:
    """What drafts are made of. id_SL: the ids of each slot's conversation by their positions, up to
    the token of the slot's state; what is behind it does not matter. acceptance_S: the share of
    drafted tokens that were right. drafts_S: whether the slot has drafts."""

    id_SL: jax.Array | np.ndarray  # int32
    acceptance_S: jax.Array | np.ndarray  # float32
    drafts_S: jax.Array | np.ndarray  # bool


def look_up(said: Said, state: SlotState, k: int) -> jax.Array:
    """Returns the drafts [S,k] of the slots, -1 behind the last token. They are shorter than the
    budget, as the pass that verifies a draft draws the token behind it, too. If a draft reaches the
    newest token, it goes on from its beginning."""
    id_SL, newest_S1 = said.id_SL, state.position_S[:, None]
    before_S1 = jnp.take_along_axis(id_SL, jnp.maximum(newest_S1 - 1, 0), axis=1)
    place_L = jnp.arange(1, id_SL.shape[1])[None]
    same_SL = (id_SL[:, :-1] == before_S1) & (id_SL[:, 1:] == state.token_S[:, None])
    earlier_SL = jnp.where(same_SL & (place_L < newest_S1), place_L, 0)
    found_S1 = earlier_SL.max(axis=1, keepdims=True)
    offset_1k = jnp.arange(k)[None]
    place_Sk = found_S1 + 1 + offset_1k % jnp.maximum(newest_S1 - found_S1, 1)
    most_S1 = jnp.where(said.drafts_S, state.budget_S - 1, 0)[:, None]
    is_drafted_Sk = (found_S1 > 0) & (offset_1k < most_S1)
    return jnp.where(is_drafted_Sk, jnp.take_along_axis(id_SL, place_Sk, axis=1), -1)


def note(said: Said, state: SlotState, draft_S: jax.Array, drawn_S: jax.Array) -> Said:
    """Notes the tokens of the state that a draw has led to, and whether drafts were right. draft_S:
    the token that was drafted; -1 if there is none. drawn_S: whether the slot has drawn one."""
    id_SL, slot_S = jnp.asarray(said.id_SL), jnp.arange(len(draft_S))
    is_right_S = draft_S == state.token_S
    change_S = jnp.where(drawn_S & (draft_S >= 0), NEWEST * (is_right_S - said.acceptance_S), 0.0)
    return dataclasses.replace(
        said,
        id_SL=id_SL.at[slot_S, state.position_S].set(state.token_S, mode="drop"),
        acceptance_S=said.acceptance_S + change_S,
    )


def pays(said: Said, draft_Sk: jax.Array, active_S: jax.Array, platform: str) -> jax.Array:
    """Returns whether a pass that verifies these drafts gives more tokens for its time than steps
    of one token for each active slot. It draws these and, by Leviathan et al. 2022, one more for
    each drafted token before which all are right."""
    k = draft_Sk.shape[1]
    right_Sk = said.acceptance_S[:, None] ** jnp.arange(1, k + 1)[None]
    saved = jnp.where((draft_Sk >= 0) & active_S[:, None], right_Sk, 0.0).sum()
    return saved > (_cost(len(active_S), k, platform) - 1) * active_S.sum()


def _cost(slots: int, k: int, platform: str) -> float:
    """The time of a pass that verifies drafts, over that of a step."""
    mesh = jax.sharding.get_abstract_mesh()
    rows = slots if mesh.empty else slots // num_data_shards(mesh)
    free = FREE_TOKENS.get(platform, ON_ACCELERATORS)
    return (free + rows * (k + 1)) / (free + rows)
