"""Causal attention within the segments of packed rows, by the platform's own kernel."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ale_jax.model.blockwise_attention import Places
from ale_jax.model.context import context_attention, context_devices
from ale_jax.model.layers import masked_attention
from ale_jax.model.paged_attention import (
    cudnn_attention,
    cudnn_takes,
    splash_attention,
    splash_takes,
)
from ale_jax.model.sharding import row_axes

WHOLE_ROW = 1024  # tokens; rows up to this length are computed in one block
BLOCK = 128  # queries per block of a longer row

Attention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def packed_attention(
    q_BTNH: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array, places: Places
) -> jax.Array:
    """Attention of each token to itself and the earlier tokens of its segment, [B,T,N,H].

    N is a multiple of G: N/G query heads share a key and value head. Padding is treated as a
    segment. No platform holds [T,T] scores of a long row in memory. Tokens are in order, or
    permuted over the mesh axis "context" (see `context.SequencePermutation`).

    The kernel is chosen at trace time, by the devices of the mesh (`jax.set_mesh`), or by JAX's
    default backend if there is no mesh. cuDNN's kernel can only be traced where cuDNN is available.
    """
    mesh, segment_BT = jax.sharding.get_abstract_mesh(), places.segment_BT
    if context_devices() > 1:
        return context_attention(q_BTNH, k_BTGH, v_BTGH, places, mesh)
    attention = _kernel(q_BTNH.shape, q_BTNH.dtype)
    if attention is xla_attention or mesh.empty or mesh.size == 1:
        return attention(q_BTNH, k_BTGH, v_BTGH, segment_BT)
    rows = row_axes(q_BTNH.shape[0], mesh)
    heads = PartitionSpec(rows, None, "tensor", None)
    return jax.shard_map(  # the compiler cannot partition a kernel
        attention,
        in_specs=(heads, heads, heads, PartitionSpec(rows, None)),
        out_specs=heads,
        check_vma=False,
    )(q_BTNH, k_BTGH, v_BTGH, segment_BT)


def _kernel(q_shape: tuple[int, ...], dtype: jnp.dtype) -> Attention:
    """The platform's fused kernel if it supports these arrays, else `xla_attention`."""
    _, T, _, H = q_shape
    mesh = jax.sharding.get_abstract_mesh()
    device = jax.devices()[0] if mesh.empty else mesh.abstract_device
    if device.platform == "tpu" and splash_takes(T, H):
        return splash_attention
    if device.device_kind.startswith("NVIDIA") and cudnn_takes(H, dtype):
        return cudnn_attention
    return xla_attention


def xla_attention(
    q_BTNH: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array, segment_BT: jax.Array
) -> jax.Array:
    """`packed_attention` in plain XLA. Rows longer than WHOLE_ROW are computed in blocks of BLOCK
    queries, whose scores are recomputed in the backward pass."""
    B, T, N, H = q_BTNH.shape
    k_BGTH, v_BGTH = k_BTGH.swapaxes(1, 2), v_BTGH.swapaxes(1, 2)
    token_BT = jnp.broadcast_to(jnp.arange(T), (B, T))

    def attend(block):
        q_BtNH, segment_Bt, token_Bt = block
        same_BtT = segment_Bt[:, :, None] == segment_BT[:, None, :]
        past_BtT = token_Bt[:, :, None] >= token_BT[:, None, :]
        return masked_attention(q_BtNH, k_BGTH, v_BGTH, same_BtT & past_BtT)

    queries = q_BTNH, segment_BT, token_BT
    if T <= WHOLE_ROW:
        return attend(queries)
    blocks = jax.tree.map(_in_blocks, queries)
    out_ZBtNH = jax.lax.map(jax.checkpoint(attend), blocks)
    return jnp.moveaxis(out_ZBtNH, 0, 1).reshape(B, -1, N, H)[:, :T]


def _in_blocks(x_BT: jax.Array) -> jax.Array:
    """[B,T,...] -> [Z,B,t,...], the last block padded with zeros."""
    B, T, *rest = x_BT.shape
    blocks = -(-T // BLOCK)
    padding = [(0, 0), (0, blocks * BLOCK - T)] + [(0, 0)] * len(rest)
    return jnp.moveaxis(jnp.pad(x_BT, padding).reshape(B, blocks, BLOCK, *rest), 1, 0)
