"""Long rows over the mesh axis "context": each device has some of the queries, and all keys.

With grouped-query attention, keys and values are small compared with the queries. They are
therefore gathered, and their gradients scattered back, which is one collective where ring attention
needs one per device. Tokens are permuted in zigzag order: a row is cut into two pieces per device,
and device i has the i-th piece from the start and the i-th from the end. Together, these see as
many keys as the pieces of any other device.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from ale_jax.model.blockwise_attention import Places, blockwise_attention
from ale_jax.model.moe import RouterStats
from ale_jax.model.sharding import row_axes

AXIS = "context"


def zigzag(tokens: int, devices: int) -> np.ndarray:
    """The order into which tokens are permuted, [T]. ValueError if they cannot be cut evenly."""
    if tokens % (2 * devices):
        raise ValueError(
            f"rows of {tokens} tokens cannot be cut into 2 x {devices} pieces for mesh.context "
            f"{devices}: set learn.pack_length to a multiple of {2 * devices}"
        )
    pieces = np.arange(tokens).reshape(2 * devices, -1)
    return np.concatenate([pieces[[i, -1 - i]].ravel() for i in range(devices)])


def context_devices() -> int:
    """The number of devices that the tokens of a row are divided over, by the current mesh."""
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
    q_BTNH: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array, places: Places, mesh: AbstractMesh
) -> jax.Array:
    """`blockwise_attention`, [B,T,N,H], of tokens in `zigzag` order on the mesh."""
    rows = row_axes(q_BTNH.shape[0], mesh)
    heads, tokens = PartitionSpec(rows, AXIS, "tensor"), PartitionSpec(rows, AXIS)

    def share(q_BtNH, k_BtGH, v_BtGH, places: Places):
        def gather(x):
            return jax.lax.all_gather(x, AXIS, axis=1, tiled=True)

        everywhere = jax.tree.map(gather, (k_BtGH, v_BtGH, places))
        k_BTGH, v_BTGH, all_places = everywhere
        return blockwise_attention(q_BtNH, k_BTGH, v_BTGH, places, all_places)

    return jax.shard_map(
        share,
        in_specs=(heads, heads, heads, Places(tokens, tokens)),
        out_specs=heads,
        check_vma=False,
    )(q_BTNH, k_BTGH, v_BTGH, places)
