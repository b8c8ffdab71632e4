"""A product with the weights of those experts alone that a token chose: a kernel for accelerators,
where a decode step takes as long as it reads weights.

The grid has a program for each expert and each block of its outputs, which computes the rows of all
tokens, as they are few. It reads no weight of an expert that nobody chose: on GPUs a program loads
what it uses, and on TPUs, where blocks are copied ahead, such an expert names the block that is
there already.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ale_jax.model.compute import Adapted, Quantised, Weight

MOST_TOKENS = 64  # of so many, few experts are left out, and each waits for more products
_LEAST_TOKENS = 16  # rows of a matrix unit
_TPU_BLOCK = 4 << 20  # bytes of weights; two blocks and their rows fit into fast memory
_GPU_BLOCK = 64, 128  # inputs and outputs that a program multiplies at once

Stack = Weight | Adapted


def has_kernel(platform: str, tokens: int, *weights: Stack) -> bool:
    """Returns whether `chosen_product` takes so many tokens and these weights [E,D,F]."""
    if platform not in ("gpu", "tpu") or tokens > MOST_TOKENS:
        return False
    return all(min(_block(platform, _plain(each))) >= _LEAST_TOKENS for each in weights)


def chosen_product(
    x_UTD: jax.Array,
    weight: Weight,
    is_chosen_E: jax.Array,
    platform: str,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Computes the product of the rows with each chosen expert's weight [E,D,F], and 0 for other
    experts, [E,T,F]. x_UTD: rows for each expert, or [1,T,D] for all of them. interpret: run on any
    platform, slowly."""
    plain, T = _plain(weight), x_UTD.shape[1]
    E, D, F = plain.shape
    inputs, outputs = _block(platform, plain)
    x_UTD = jnp.pad(x_UTD, ((0, 0), (0, _rows(T) - T), (0, 0)))
    arrays = [x_UTD, plain] + ([weight.scale] if isinstance(weight, Quantised) else [])
    is_shared, rows = len(x_UTD) == 1, _rows(T)

    # The last grid dimension changes fastest. told: on TPUs, what is known before the grid begins.
    def at(e: jax.Array, *told: jax.Array) -> jax.Array:
        return told[1][e] if told else e

    specs = [
        pl.BlockSpec((None, rows, D), lambda f, e, *told: (0 if is_shared else at(e, *told), 0, 0)),
        pl.BlockSpec((None, D, outputs), lambda f, e, *told: (at(e, *told), 0, f)),
        pl.BlockSpec((None, 1, outputs), lambda f, e, *told: (at(e, *told), 0, f)),
    ][: len(arrays)]
    call = partial(
        pl.pallas_call,
        partial(_kernel, inputs=inputs),
        out_shape=jax.ShapeDtypeStruct((E, rows, F), x_UTD.dtype),
        interpret=interpret,
    )
    grid, out = (F // outputs, E), pl.BlockSpec((None, rows, outputs), lambda f, e, *_: (e, 0, f))
    chosen_E = is_chosen_E.astype(jnp.int32)
    if platform == "tpu":
        from jax.experimental.pallas import tpu

        grid_spec = tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2, grid=grid, in_specs=specs, out_specs=out
        )
        kernel = call(grid_spec=grid_spec)
        return kernel(chosen_E, _there(is_chosen_E), *arrays)[:, :T]
    from jax.experimental.pallas import triton

    # The second argument is only for the other platform.
    whole = pl.BlockSpec((E,), lambda f, e: (0,))
    kernel = call(
        grid=grid,
        in_specs=[whole, whole, *specs],
        out_specs=out,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=4),
    )
    return kernel(chosen_E, chosen_E, *arrays)[:, :T]


def _kernel(chosen_E, _, x_TD, weight_DF, *scale_and_out, inputs: int):
    *scale_1F, out_TF = scale_and_out
    is_chosen = chosen_E[pl.program_id(1)] > 0

    def add(i: jax.Array, total_TF: jax.Array) -> jax.Array:
        part = pl.ds(i * inputs, inputs)
        x, weight = x_TD[:, part], weight_DF[part, :]
        if scale_1F:
            weight = weight.astype(jnp.float32) * scale_1F[0][...]
        weight = weight.astype(x.dtype)
        return total_TF + jnp.dot(x, weight, preferred_element_type=jnp.float32)

    @pl.when(is_chosen)
    def multiply():
        nothing_TF = jnp.zeros(out_TF.shape, jnp.float32)
        total_TF = jax.lax.fori_loop(0, x_TD.shape[1] // inputs, add, nothing_TF)
        out_TF[...] = total_TF.astype(out_TF.dtype)

    @pl.when(~is_chosen)
    def clear():
        out_TF[...] = jnp.zeros(out_TF.shape, out_TF.dtype)


def _there(is_chosen_E: jax.Array) -> jax.Array:
    """The chosen expert whose block is there when the grid comes to each expert: its own, or that
    of the last one before; before the first one, that of the first one."""
    number_E = jnp.arange(len(is_chosen_E))
    last_E = jax.lax.cummax(jnp.where(is_chosen_E, number_E, -1))
    return jnp.where(last_E < 0, is_chosen_E.argmax(), last_E).astype(jnp.int32)


def _plain(weight: Stack) -> jax.Array:
    if isinstance(weight, Adapted):
        return _plain(weight.base)
    return weight.value if isinstance(weight, Quantised) else weight


def _rows(tokens: int) -> int:
    return max(_LEAST_TOKENS, pl.next_power_of_2(tokens))


def _block(platform: str, weight: jax.Array) -> tuple[int, int]:
    """How many inputs and outputs of a weight are multiplied at once; they divide its own."""
    _, D, F = weight.shape
    if platform == "tpu":
        most = max(128, _TPU_BLOCK // (D * weight.dtype.itemsize))
        fits = [f for f in range(128, F + 1, 128) if F % f == 0 and f <= most]
        return D, max(fits, default=F if most >= F else 0)
    inputs, outputs = (min(most, n & -n) for most, n in zip(_GPU_BLOCK, (D, F), strict=True))
    return inputs, outputs
