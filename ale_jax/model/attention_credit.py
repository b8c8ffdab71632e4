"""How far back each head attends, and how much later tokens attend to a token, without ever holding
a whole attention matrix.

One forward pass through the policy's own layers, up to the last selected layer. Only the queries
and keys of that layer are computed. Within a layer, the attention of one block of queries is in
memory at a time.
Source: arXiv 2510.13554. `ale_jax.algo.attention_credit` turns these statistics into credit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import Attention, PolicyShape
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.model.attention import SequencePermutation
from ale_jax.model.blockwise_attention import Places, in_reach, scores
from ale_jax.model.compute import cast_layer
from ale_jax.model.layers import MASKED, block_input
from ale_jax.model.lora import adapted_layers
from ale_jax.model.params import Params
from ale_jax.model.policy import decoder_layer, embed_tokens, heads_of, replay_by_layer

BLOCK = 128  # queries per block; neither window nor horizon may exceed it


class HeadStatistics(NamedTuple):
    """Statistics of each head and token, float32 [B,X,T]. A_ts is the attention of token t to token
    s of its segment; it sums to 1 over s, as what a sink takes is left out.

    distance: sum_s A_ts (t-s). waad: sum_s A_ts min(t-s, W). fai, of token s: the mean of A_ts over
    the tokens t written by the policy with low <= t-s <= high, 0 if there are none.
    """

    distance_BXT: jax.Array
    waad_BXT: jax.Array
    fai_BXT: jax.Array


def middle_layers(num_layers: int, wanted: int) -> tuple[int, ...]:
    """`wanted` layers, evenly spaced over the middle third, including both of its ends. All layers
    of the third if it has fewer, and always at least one."""
    first = num_layers // 3
    last = max(first, 2 * num_layers // 3 - 1)
    return tuple(sorted({round(x) for x in np.linspace(first, last, wanted).tolist()}))


def attention_statistics(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    action_mask_BT: jax.Array,
    shape: PolicyShape,
    layers: tuple[int, ...],
    window: int,
    horizon: tuple[int, int],
    compute: Compute = FLOAT32,
    replay_BTLK: jax.Array | None = None,
) -> HeadStatistics:
    """Statistics of packed rows whose segments are contiguous.

    action_mask_BT: whether the policy wrote the token. horizon: (low, high) of FAI. replay_BTLK: as
    in `policy.hidden_states`.
    """
    permutation = SequencePermutation.on_mesh(tokens_BT.shape[1])
    places = Places(permutation.deal(segment_BT), permutation.deal(position_BT))
    replays = replay_by_layer(permutation, replay_BTLK, shape)
    x_BTD = embed_tokens(params, permutation.deal(tokens_BT), shape, compute)
    found = []
    for number, layer in enumerate(adapted_layers(params)[: layers[-1] + 1]):
        layer = cast_layer(layer, compute.compute_dtype)
        kind = shape.layers[number]
        if number in layers:
            h_BTD = block_input(layer, x_BTD, kind, "attn")
            q_BTNH, k_BTGH, _, attention = heads_of(layer, h_BTD, places.position_BT, kind)
            q_BTNH, k_BTGH = permutation.collect(q_BTNH), permutation.collect(k_BTGH)
            found.append(
                head_statistics(
                    q_BTNH, k_BTGH, segment_BT, action_mask_BT, window, horizon, attention
                )
            )
        if number < layers[-1]:  # the compiler removes the repeated projections
            x_BTD, _ = decoder_layer(layer, x_BTD, places, kind, replays[number])
    return HeadStatistics(*(jnp.concatenate(of_layers, axis=1) for of_layers in zip(*found)))


def head_statistics(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    segment_BT: jax.Array,
    action_mask_BT: jax.Array,
    window: int,
    horizon: tuple[int, int],
    kind: Attention,
) -> HeadStatistics:
    """Statistics of one layer, with tokens in order. Scores and softmax are in float32, as in
    `masked_attention`."""
    (B, T, N, H), G = q_BTNH.shape, k_BTGH.shape[2]
    low, high = horizon
    reach = max(window, high)
    assert 0 <= low <= high <= BLOCK and 1 <= window <= BLOCK, (window, horizon)
    blocks = -(-T // BLOCK)
    behind = blocks * BLOCK - T
    # Keys are padded with `reach` places in front, so that all keys that a block reaches are in
    # one slice. Its places j, the same for every block:
    #
    #     j = 0                     reach      reach + i       reach + BLOCK
    #     | end of the block before | the block's BLOCK tokens |
    #                                          query i, i + reach - j tokens after place j
    #
    # What the first part receives belongs to the tokens of the block before (`by_key`).
    k_BMGH = jnp.pad(k_BTGH, ((0, 0), (reach, behind), (0, 0), (0, 0)))
    segment_BM = jnp.pad(segment_BT, ((0, 0), (reach, behind)), constant_values=-1)
    q_BTGrH = q_BTNH.reshape(B, T, G, N // G, H)

    # Distance from a block's query i back to place j of its slice, the same for every block.
    near_tJ = np.arange(BLOCK)[:, None] + reach - np.arange(BLOCK + reach)[None, :]
    short_tJ = np.where(near_tJ >= 0, np.maximum(window - near_tJ, 0), 0).astype(np.float32)
    within_tJ = (low <= near_tJ) & (near_tJ <= high)

    def measure(block):
        start, q_BtGrH, segment_Bt, written_Bt = block
        query_t, key_M = start + reach + jnp.arange(BLOCK), jnp.arange(k_BMGH.shape[1])
        distance_tM = query_t[:, None] - key_M[None, :]
        reach_BtM = in_reach(query_t[None], key_M[None], kind.window)
        seen_BtM = (segment_Bt[:, :, None] == segment_BM[:, None, :]) & reach_BtM
        score_BGtrM = jnp.einsum(
            "btgrh,bmgh->bgtrm", q_BtGrH, k_BMGH, preferred_element_type=jnp.float32
        )
        score_BGtrM = jnp.where(seen_BtM[:, None, :, None], scores(score_BGtrM, kind), MASKED)
        most_BGtr1 = score_BGtrM.max(axis=-1, keepdims=True)
        weight_BGtrM = jnp.exp(score_BGtrM - most_BGtr1)  # 0 where masked; padding is removed below
        total_BGtr = weight_BGtrM.sum(axis=-1)
        far_BGtr = (weight_BGtrM * distance_tM[None, None, :, None]).sum(axis=-1) / total_BGtr

        weight_BGtrJ = jax.lax.dynamic_slice_in_dim(weight_BGtrM, start, BLOCK + reach, axis=-1)
        seen_BtJ = jax.lax.dynamic_slice_in_dim(seen_BtM, start, BLOCK + reach, axis=-1)
        attention_BGtrJ = weight_BGtrJ / total_BGtr[..., None]
        # sum A min(d, W) = W - sum A max(W - d, 0), and max(W - d, 0) is 0 outside the slice.
        near_BGtr = (attention_BGtrJ * short_tJ[None, None, :, None]).sum(axis=-1)
        back_BtJ = seen_BtJ & written_Bt[:, :, None] & within_tJ[None]
        back_BGrJ = jnp.where(back_BtJ[:, None, :, None], attention_BGtrJ, 0.0).sum(axis=2)
        return far_BGtr, window - near_BGtr, back_BGrJ, back_BtJ.sum(axis=1)

    def cut(x_BT):
        x_BT = jnp.pad(x_BT, ((0, 0), (0, behind)) + ((0, 0),) * (x_BT.ndim - 2))
        return jnp.moveaxis(x_BT.reshape(B, blocks, BLOCK, *x_BT.shape[2:]), 1, 0)

    starts_Z = jnp.arange(blocks) * BLOCK
    far_ZBGtr, waad_ZBGtr, back_ZBGrJ, times_ZBJ = jax.lax.map(
        measure, (starts_Z, cut(q_BTGrH), cut(segment_BT), cut(action_mask_BT))
    )

    def by_query(x_ZBGtr):
        return x_ZBGtr.transpose(1, 2, 4, 0, 3).reshape(B, N, blocks * BLOCK)[:, :, :T]

    def by_key(x_ZBNJ):
        """Sums by key, of N heads or of one. What a key received from the next block is added to
        what it received from its own block."""
        own_ZBNt = x_ZBNJ[..., reach:]
        later_ZBNJ = jnp.pad(x_ZBNJ[1:, ..., :reach], ((0, 1), *[(0, 0)] * (x_ZBNJ.ndim - 1)))
        room = [(0, 0)] * (x_ZBNJ.ndim - 1) + [(BLOCK - reach, 0)]
        both_ZBNt = own_ZBNt + jnp.pad(later_ZBNJ, room)
        return jnp.moveaxis(both_ZBNt, 0, -2).reshape(B, -1, blocks * BLOCK)[..., :T]

    times_B1T = by_key(times_ZBJ[:, :, None])
    fai_BNT = by_key(back_ZBGrJ.reshape(blocks, B, N, -1)) / jnp.maximum(times_B1T, 1)
    return HeadStatistics(by_query(far_ZBGtr), by_query(waad_ZBGtr), fai_BNT)
