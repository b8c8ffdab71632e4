"""Attention of a decode step that reads the cache's pages where they lie, by a platform's kernel.

Platforms without one, and pages of int8, gather the pages into rows instead (model/cache.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ale_jax.model.cache import Int8, LayerPages
from ale_jax.model.shares import on_each_share

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def has_kernel(platform: str, pages: LayerPages) -> bool:
    return platform in KERNELS and not isinstance(pages.k_GPbH, Int8)


def paged_attention(
    q_BNH: jax.Array, pages: LayerPages, page_BW: jax.Array, length_B: jax.Array, platform: str
) -> jax.Array:
    """Grouped-query attention of one query per conversation over its first `length_B` tokens,
    [B,N,H]. A compiler cannot cut a kernel into shares: each device calls it for its own."""
    kernel = on_each_share("BN GP GP B B -> BN")(KERNELS[platform])
    scale = q_BNH.shape[-1] ** -0.5  # the kernels leave it to their callers
    return kernel(q_BNH * scale, pages.k_GPbH, pages.v_GPbH, page_BW, length_B.astype(jnp.int32))


def _on_gpu(q_BNH, k_GPbH, v_GPbH, page_BW, length_B) -> jax.Array:
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    splits = math.gcd(page_BW.shape[1], 16)
    block = math.gcd(page_BW.shape[1] // splits, 8)
    return paged_attention(
        q_BNH, k_GPbH, v_GPbH, page_BW, length_B, k_splits=splits, pages_per_compute_block=block
    )


def _on_tpu(q_BNH, k_GPbH, v_GPbH, page_BW, length_B) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    block = math.gcd(page_BW.shape[1], 8)
    return paged_attention(
        q_BNH, k_GPbH, v_GPbH, length_B, page_BW, pages_per_compute_block=block
    ).astype(q_BNH.dtype)


# By the platform's name in JAX. Imported when used: their modules are of no use elsewhere.
KERNELS: dict[str, Kernel] = {"gpu": _on_gpu, "tpu": _on_tpu}
