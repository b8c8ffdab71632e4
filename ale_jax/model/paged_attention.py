"""Attention kernels of the platforms: paged attention for decoding, fused attention for packed
rows.

The paged kernel reads the pages of the cache in place. Platforms without one, and int8 pages,
gather the pages into rows instead (model/cache.py). A fused kernel processes the rows of one data
shard.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from ale_jax.config.architecture import Attention, Mixer
from ale_jax.model.cache import LANES, Int8, LayerPages, Pages, on_each_shard
from ale_jax.model.sharding import current_device

Kernel = Callable[..., jax.Array]  # of queries, keys, values, pages and lengths, with a soft cap


def has_kernel(platform: str, pages: Pages, kind: Mixer) -> bool:
    """Returns whether a platform has a kernel that reads such pages, none of which reads int8 or
    latents, nor a TPU's other widths than its lanes have, and computes such attention."""
    if not isinstance(kind, Attention) or not isinstance(pages, LayerPages):
        return False
    if isinstance(pages.k_GPbH, Int8) or pages.width % LANES.get(platform, 1):
        return False
    return platform in KERNELS and not kind.window and not kind.sinks


def paged_attention(
    q_BNH: jax.Array,
    pages: LayerPages,
    page_BW: jax.Array,
    length_B: jax.Array,
    platform: str,
    kind: Attention,
) -> jax.Array:
    """Computes the grouped-query attention of one query per conversation over its first `length_B`
    tokens, [B,N,H]. The compiler cannot partition a kernel, so each device calls it for its own
    shard."""
    attend = functools.partial(KERNELS[platform], cap=kind.cap or None)
    kernel = on_each_shard("BN GP GP B B -> BN")(attend)
    # The kernels leave the scaling to their callers.
    return kernel(
        q_BNH * kind.scale, pages.k_GPbH, pages.v_GPbH, page_BW, length_B.astype(jnp.int32)
    )


def _on_gpu(q_BNH, k_GPbH, v_GPbH, page_BW, length_B, *, cap: float | None) -> jax.Array:
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    splits = math.gcd(page_BW.shape[1], 16)
    block = math.gcd(page_BW.shape[1] // splits, 8)
    return paged_attention(
        *(q_BNH, k_GPbH, v_GPbH, page_BW, length_B),
        k_splits=splits,
        pages_per_compute_block=block,
        attn_logits_soft_cap=cap,
    )


def _on_tpu(q_BNH, k_GPbH, v_GPbH, page_BW, length_B, *, cap: float | None) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    block = math.gcd(page_BW.shape[1], 8)
    return paged_attention(
        *(q_BNH, k_GPbH, v_GPbH, length_B, page_BW),
        pages_per_compute_block=block,
        attn_logits_soft_cap=cap,
    ).astype(q_BNH.dtype)


# By the platform's name in JAX. The kernels are imported when used, because their modules are of no
# use on other platforms.
KERNELS: dict[str, Kernel] = {"gpu": _on_gpu, "tpu": _on_tpu}


_SPLASH_BLOCKS = (512, 256, 128)  # tokens
_CODE_WIDTH = 16
_CODE_SIZE = (
    2.0**15
)  # the largest power of two in float16, so that no score makes up for its square


def splash_takes(T: int, H: int) -> bool:
    """Returns whether the TPU's kernel supports rows of T tokens and heads of width H."""
    return T % min(_SPLASH_BLOCKS) == 0 and H % 64 == 0


def splash_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
    kind: Attention,
    sink_N: jax.Array | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """[B,T,N,H] by JAX's kernel for TPUs. interpret: run on any platform, slowly."""
    _, T, N, _ = q_BTNH.shape
    kernel = _splash_kernel(T, N, kind, interpret)
    # Scalars in a TPU's memory for them have 32 bits.
    sinks = None if sink_N is None else sink_N.astype(jnp.float32)

    def attend_row(q_TNH, k_TGH, v_TGH, segment_T):
        heads_first = (x.swapaxes(0, 1) for x in (q_TNH * kind.scale, k_TGH, v_TGH))
        segments = splash.SegmentIds(segment_T, segment_T)
        out_NTH = kernel(*heads_first, segment_ids=segments, sinks=sinks)
        return out_NTH.swapaxes(0, 1)

    return jax.vmap(attend_row)(q_BTNH, k_BTGH, v_BTGH, segment_BT).astype(q_BTNH.dtype)


def _splash_kernel(T: int, N: int, kind: Attention, interpret: bool):
    block = next(size for size in _SPLASH_BLOCKS if T % size == 0)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    return splash.make_splash_mha_single_device(
        splash.MultiHeadMask([_splash_mask(T, kind)] * N),
        block_sizes=sizes,
        attn_logits_soft_cap=kind.cap or None,
        interpret=interpret,
    )


def _splash_mask(T: int, kind: Attention) -> splash.Mask:
    if kind.window:
        return splash.LocalMask((T, T), (kind.window - 1, 0), 0)
    return splash.CausalMask((T, T))


def cudnn_takes(H: int, dtype: jnp.dtype, kind: Attention) -> bool:
    """Returns whether cuDNN, on the GPU that is traced for, supports this type and kind, and heads
    of this width plus the codes of `attend_with_codes`."""
    if kind.cap or kind.sinks:
        return False
    gpu: Any = current_device()
    is_hopper = float(gpu.compute_capability) >= 9
    widest = 256 if is_hopper else 128
    return dtype in (jnp.bfloat16, jnp.float16) and H % 8 == 0 and widest >= H + _CODE_WIDTH


def cudnn_attention(
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
    kind: Attention,
    sink_N: None = None,
) -> jax.Array:
    """[B,T,N,H] by cuDNN's flash attention, which supports causal masks but not segments, caps or
    sinks."""
    attention = functools.partial(
        jax.nn.dot_product_attention,
        scale=kind.scale,
        is_causal=True,
        local_window_size=(kind.window - 1, 0) if kind.window else None,
        implementation="cudnn",
    )
    return attend_with_codes(attention, q_BTNH, k_BTGH, v_BTGH, segment_BT)


def attend_with_codes(
    attention,
    q_BTNH: jax.Array,
    k_BTGH: jax.Array,
    v_BTGH: jax.Array,
    segment_BT: jax.Array,
) -> jax.Array:
    """Computes attention within segments, by a kernel `attention` (q, k, v) that does not
    support segments.

    Each segment has a set of dimensions, which none of another segment contains. A key has
    -_CODE_SIZE in those of its segment, a query _CODE_SIZE in all others. So the products with keys
    of the own segment gain exact zeros, and those with others lose _CODE_SIZE^2 or more, which
    softmax turns into 0 whatever the scores are. The result is NaN if there are more segments than
    sets (12,870).
    """
    H = q_BTNH.shape[-1]
    code_BT1c = jnp.take(_codes(), segment_BT[:, :, None], axis=0, mode="fill")
    code_BT1c = code_BT1c.astype(q_BTNH.dtype)

    def widen(x, code):
        return jnp.concatenate([x, jnp.broadcast_to(code, (*x.shape[:-1], code.shape[-1]))], -1)

    q, k = widen(q_BTNH, _CODE_SIZE * (1 - code_BT1c)), widen(k_BTGH, -_CODE_SIZE * code_BT1c)
    out = attention(q, k, widen(v_BTGH, jnp.zeros_like(code_BT1c)))
    return out[..., :H]


@functools.cache
def _codes() -> np.ndarray:
    """All sets of half of the dimensions, as rows of 0 and 1. None contains another, and there is
    no larger family of such sets (Sperner)."""
    sets = list(itertools.combinations(range(_CODE_WIDTH), _CODE_WIDTH // 2))
    codes = np.zeros((len(sets), _CODE_WIDTH), np.float32)
    np.put_along_axis(codes, np.array(sets), 1.0, axis=1)
    return codes
