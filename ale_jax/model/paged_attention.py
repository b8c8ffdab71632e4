"""Attention kernels of the platforms: paged attention for decoding, fused attention for packed
rows.

The paged kernel reads the pages of the cache in place. Platforms without one, and int8 pages,
gather the pages into rows instead (model/cache.py). A fused kernel processes the rows of one data
shard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from ale_jax.model.cache import Int8, LayerPages, on_each_shard

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def has_kernel(platform: str, pages: LayerPages) -> bool:
    return platform in KERNELS and not isinstance(pages.k_GPbH, Int8)


def paged_attention(
    q_BNH: jax.Array, pages: LayerPages, page_BW: jax.Array, length_B: jax.Array, platform: str
) -> jax.Array:
    """Grouped-query attention of one query per conversation over its first `length_B` tokens,
    [B,N,H]. The compiler cannot partition a kernel, so each device calls it for its own shard."""
    kernel = on_each_shard("BN GP GP B B -> BN")(KERNELS[platform])
    scale = q_BNH.shape[-1] ** -0.5  # the kernels leave the scaling to their callers
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


# By the platform's name in JAX. The kernels are imported when used, because their modules are of no
# use on other platforms.
KERNELS: dict[str, Kernel] = {"gpu": _on_gpu, "tpu": _on_tpu}


_SPLASH_BLOCKS = (512, 256, 128)  # tokens
_CODE_BITS = 16  # a row has fewer than 2^16 segments
_CODE_GAP = 512.0  # between the scores of own and other segments; softmax turns it into 0


def splash_takes(T: int, H: int) -> bool:
    return T % min(_SPLASH_BLOCKS) == 0 and H % 64 == 0


def splash_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
    interpret: bool = False,
) -> jax.Array:
    """[B,T,N,H] by JAX's kernel for TPUs. interpret: run on any platform, slowly."""
    _, T, N, H = q_BTNH.shape
    kernel = _splash_kernel(T, N, interpret)

    def attend_row(q_TNH, k_TGH, v_TGH, segment_T):
        heads_first = (x.swapaxes(0, 1) for x in (q_TNH * H**-0.5, k_TGH, v_TGH))
        out_NTH = kernel(*heads_first, segment_ids=splash.SegmentIds(segment_T, segment_T))
        return out_NTH.swapaxes(0, 1)

    return jax.vmap(attend_row)(q_BTNH, k_BTGH, v_BTGH, segment_BT).astype(q_BTNH.dtype)


def _splash_kernel(T: int, N: int, interpret: bool):
    block = next(size for size in _SPLASH_BLOCKS if T % size == 0)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    mask = splash.MultiHeadMask([splash.CausalMask((T, T))] * N)
    return splash.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret)


def cudnn_takes(H: int, dtype: jnp.dtype) -> bool:
    """Whether cuDNN, on the local devices, supports this type and heads of this width plus the bits
    of `attend_with_codes`."""
    is_hopper = float(jax.devices()[0].compute_capability) >= 9
    widest = 256 if is_hopper else 128
    return dtype in (jnp.bfloat16, jnp.float16) and H % 8 == 0 and widest >= H + _CODE_BITS


def cudnn_attention(
    q_BTNH: jax.Array, k_BTGH: jax.Array, v_BTGH: jax.Array, segment_BT: jax.Array
) -> jax.Array:
    """[B,T,N,H] by cuDNN's flash attention, which supports causal masks but not segments."""
    attention = functools.partial(
        jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
    )
    return attend_with_codes(attention, q_BTNH, k_BTGH, v_BTGH, segment_BT)


def attend_with_codes(
    attention,
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
) -> jax.Array:
    """Attention within segments, by a kernel `attention` (q, k, v, scale=...) that does not support
    segments.

    Queries and keys are extended by the bits of their segment's number, as -1 and 1. The product of
    the bits is largest where all of them agree, and smaller by _CODE_GAP or more for a token of
    another segment. It is the same for all tokens of a segment, so it does not change their
    attention.
    """
    H = q_BTNH.shape[-1]
    scale = H**-0.5
    bits_BTc = (segment_BT[..., None] >> jnp.arange(_CODE_BITS)[None, None]) & 1
    code_BT1c = (2 * bits_BTc - 1)[:, :, None].astype(q_BTNH.dtype)
    weight = jnp.asarray(_CODE_GAP / 2 / scale, q_BTNH.dtype)

    def widen(x, code):
        return jnp.concatenate([x, jnp.broadcast_to(code, (*x.shape[:-1], code.shape[-1]))], -1)

    q, k = widen(q_BTNH, weight * code_BT1c), widen(k_BTGH, code_BT1c)
    out = attention(q, k, widen(v_BTGH, jnp.zeros_like(code_BT1c)), scale=scale)
    return out[..., :H]
