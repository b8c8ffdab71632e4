"""Causal attention within the segments of packed rows, by the platform's own kernel.

Long rows lie along the mesh axis "context": each device has some of the queries, and all keys. With
grouped-query attention, keys and values are small compared with the queries. They are therefore
gathered, and their gradients scattered back, which is one collective where ring attention needs one
per device. Tokens are permuted in zigzag order: a row is cut into two pieces per device, and device
i has the i-th piece from the start and the i-th from the end. Together, these see as many keys as
the pieces of any other device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ale_jax.config.architecture import Attention
from ale_jax.model.blockwise_attention import Places, blockwise_attention
from ale_jax.model.moe import RouterStats
from ale_jax.model.paged_attention import (
    cudnn_attention,
    cudnn_takes,
    splash_attention,
    splash_takes,
)
from ale_jax.model.sharding import current_device, row_axes

AXIS = "context"

Kernel = Callable[..., jax.Array]  # of q, k, v, segments, the kind and its sinks


def packed_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    places: Places,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Computes the attention of each token to itself and the earlier tokens of its segment,
    [B,T,N,H] with the width of the values, as far back as the kind's window.

    N is a multiple of G: N/G query heads share a key and value head. Values may be narrower or
    wider than keys; kernels that need equal widths are given zeros beside the narrower ones.
    Padding is treated as a segment. No platform holds [T,T] scores of a long row in memory. Tokens
    are in order, or permuted over the mesh axis "context" (see `SequencePermutation`).

    The kernel is chosen at trace time, by the devices of the mesh (`jax.set_mesh`), or by JAX's
    default backend if there is no mesh. cuDNN's kernel can only be traced where cuDNN is available.
    """
    qkv = q_BTNH, k_BTGH, v_BTGH
    if context_devices() > 1:
        return context_attention(*qkv, places, kind, sink_N)
    wide, width = equally_wide(*qkv), v_BTGH.shape[-1]
    attention = _kernel(wide[0].shape, q_BTNH.dtype, kind)
    if attention is xla_attention:
        wide = qkv
    return _on_each_shard(attention, wide, places.segment_BT, kind, sink_N)[..., :width]


QKV = tuple[jax.Array, jax.Array, jax.Array]


def equally_wide(*qkv: jax.Array) -> QKV:
    """Returns queries, keys and values with zeros behind the narrower ones, which add nothing to
    scores or to the values before them."""
    most = max(x.shape[-1] for x in qkv)
    q, k, v = (
        x if x.shape[-1] == most else jnp.pad(x, [(0, 0)] * 3 + [(0, most - x.shape[-1])])
        for x in qkv
    )
    return q, k, v


def _on_each_shard(
    attention: Kernel,
    qkv: QKV,
    segment_BT: jax.Array,
    kind: Attention,
    sink_N: jax.Array | None,
) -> jax.Array:
    """The compiler cannot partition a kernel, so each device calls it for its own shard. In plain
    XLA each device then visits no more blocks than its own rows need."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attention(*qkv, segment_BT, kind, sink_N)
    rows = row_axes(len(segment_BT), mesh)
    heads = PartitionSpec(rows, None, "tensor", None)
    return jax.shard_map(
        lambda q, k, v, segment, sink: attention(q, k, v, segment, kind, sink),
        in_specs=(heads, heads, heads, PartitionSpec(rows, None), PartitionSpec("tensor")),
        out_specs=heads,
        check_vma=False,
    )(*qkv, segment_BT, sink_N)


def _kernel(q_shape: tuple[int, ...], dtype: jnp.dtype, kind: Attention) -> Kernel:
    """The platform's fused kernel if it supports these arrays and this kind, else
    `xla_attention`."""
    _, T, _, H = q_shape
    device = current_device()
    if device.platform == "tpu" and splash_takes(T, H):
        return splash_attention
    if device.device_kind.startswith("NVIDIA") and cudnn_takes(H, dtype, kind):
        return cudnn_attention
    return xla_attention


def xla_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """`packed_attention` in plain XLA."""
    places = Places(segment_BT, jnp.broadcast_to(jnp.arange(segment_BT.shape[1]), segment_BT.shape))
    return blockwise_attention(q_BTNH, k_BTGH, v_BTGH, places, places, kind, sink_N)


def zigzag(tokens: int, devices: int) -> np.ndarray:
    """Returns the order into which tokens are permuted, [T]. ValueError if they cannot be cut
    evenly."""
    if tokens % (2 * devices):
        raise ValueError(
            f"rows of {tokens} tokens cannot be cut into 2 x {devices} pieces for mesh.context "
            f"{devices}: set learn.pack_length to a multiple of {2 * devices}"
        )
    pieces = np.arange(tokens).reshape(2 * devices, -1)
    return np.concatenate([pieces[[i, -1 - i]].ravel() for i in range(devices)])


def context_devices() -> int:
    """Returns the number of devices that the tokens of a row are divided over, by the current
    mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape[AXIS]


@dataclasses.dataclass(frozen=True)
class SequencePermutation:
    """The order in which the mesh holds the tokens of rows; None: the original order."""

    order_T: np.ndarray | None

    @classmethod
    def on_mesh(cls, tokens: int) -> SequencePermutation:
        devices = context_devices()
        return cls(zigzag(tokens, devices) if devices > 1 else None)

    def deal(self, x_BT: jax.Array) -> jax.Array:
        return x_BT if self.order_T is None else x_BT[:, self.order_T]

    def collect(self, x_BT: jax.Array) -> jax.Array:
        return x_BT if self.order_T is None else x_BT[:, np.argsort(self.order_T)]

    def collect_stats(self, stats: RouterStats, rows: int) -> RouterStats:
        def collect(x_T: jax.Array) -> jax.Array:
            return self.collect(x_T.reshape(rows, -1, x_T.shape[-1])).reshape(x_T.shape)

        return RouterStats(*map(collect, stats))


def context_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    places: Places,
    kind: Attention,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """`blockwise_attention`, [B,T,N,H], of tokens in `zigzag` order on the mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    (B, T), rows = q_BTNH.shape[:2], row_axes(q_BTNH.shape[0], mesh)
    # Positions in the row ascend over all of its segments.
    token_BT = jnp.broadcast_to(zigzag(T, mesh.shape[AXIS]).astype(np.int32), (B, T))
    places = places._replace(position_BT=token_BT)
    heads, tokens = PartitionSpec(rows, AXIS, "tensor"), PartitionSpec(rows, AXIS)

    def share(q_BtNH, k_BtGH, v_BtGH, places: Places, sink_N):
        def gather(x):
            return jax.lax.all_gather(x, AXIS, axis=1, tiled=True)

        everywhere = jax.tree.map(gather, (k_BtGH, v_BtGH, places))
        k_BTGH, v_BTGH, all_places = everywhere
        return blockwise_attention(q_BtNH, k_BTGH, v_BTGH, places, all_places, kind, sink_N)

    return jax.shard_map(
        share,
        in_specs=(heads, heads, heads, tokens, PartitionSpec("tensor")),
        out_specs=heads,
        check_vma=False,
    )(q_BTNH, k_BTGH, v_BTGH, places, sink_N)
