"""The kernels that read pages: interpreted on the CPU, and lowered for their own platforms."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice

from ale_jax.config.architecture import Attention
from ale_jax.config.hardware import MeshShape
from ale_jax.model import paged_attention as kernels
from ale_jax.model.cache import Int8, LayerPages, gather_rows, load, store_as, write_pages
from ale_jax.model.layers import masked_attention
from ale_jax.model.sharding import abstract_mesh, make_mesh

B, G, R, H, PAGE_TOKENS, WIDTH, PAGES = 4, 2, 4, 128, 16, 8, 40
LENGTH_B = jnp.array([1, 17, 100, 128], jnp.int32)

KIND = Attention(G * R, G, H, scale=H**-0.5, rope=None)
CAPPED = dataclasses.replace(KIND, cap=1.5)


def _inputs(dtype=jnp.float32):
    draw = np.random.default_rng(0)
    q_BNH = jnp.asarray(draw.normal(size=(B, G * R, H)), dtype)
    k, v = (jnp.asarray(draw.normal(size=(G, PAGES, PAGE_TOKENS, H)), dtype) for _ in "kv")
    page_BW = jnp.asarray(draw.permutation(PAGES)[: B * WIDTH].reshape(B, WIDTH), jnp.int32)
    return q_BNH, LayerPages(k, v), page_BW


def _by_rows(q_BNH, pages, page_BW, length_B=LENGTH_B, kind=KIND):
    """The same by the way that every platform has."""
    rows = gather_rows(pages, page_BW)
    mask_B1M = jnp.arange(WIDTH * PAGE_TOKENS)[None, None] < length_B[:, None, None]
    return masked_attention(q_BNH[:, None], rows.k_BGMH, rows.v_BGMH, mask_B1M, kind)[:, 0]


@pytest.mark.parametrize("kind", [KIND, CAPPED], ids=["plain", "capped"])
def test_the_gpu_kernel_interpreted(kind, monkeypatch):
    pallas_call = pl.pallas_call
    monkeypatch.setattr(
        pl, "pallas_call", lambda *a, **k: pallas_call(*a, **k | {"interpret": True})
    )
    q_BNH, pages, page_BW = _inputs()
    out_BNH = kernels.paged_attention(q_BNH, pages, page_BW, LENGTH_B, "gpu", kind)
    expected = _by_rows(q_BNH, pages, page_BW, kind=kind)
    np.testing.assert_allclose(out_BNH, expected, atol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [KIND, CAPPED], ids=["plain", "capped"])
def test_the_tpu_kernel_interpreted(kind):
    q_BNH, pages, page_BW = _inputs()
    with pltpu.force_tpu_interpret_mode():
        out_BNH = kernels.paged_attention(q_BNH, pages, page_BW, LENGTH_B, "tpu", kind)
    expected = _by_rows(q_BNH, pages, page_BW, kind=kind)
    np.testing.assert_allclose(out_BNH, expected, atol=2e-2)


def test_on_a_mesh_each_device_has_pages_of_its_own(monkeypatch):
    """Of four shards each has one conversation and ten pages, which are numbered from 0."""

    def kernel(q_BNH, k_GPbH, v_GPbH, page_BW, length_B, cap):
        assert cap is None
        assert q_BNH.shape == (1, R, H) and k_GPbH.shape == (1, 10, PAGE_TOKENS, H)
        return _by_rows(q_BNH * H**0.5, LayerPages(k_GPbH, v_GPbH), page_BW, length_B)

    monkeypatch.setitem(kernels.KERNELS, "gpu", kernel)
    q_BNH, pages, _ = _inputs()
    page_BW = jnp.asarray([np.random.default_rng(b).permutation(10)[:WIDTH] for b in range(B)])
    expected = _by_rows(q_BNH, pages, page_BW + 10 * jnp.arange(B)[:, None])
    with jax.set_mesh(make_mesh(MeshShape(data=2, fsdp=2, tensor=2))):
        decode = jax.jit(kernels.paged_attention, static_argnums=(4, 5))
        out_BNH = decode(q_BNH, pages, page_BW, LENGTH_B, "gpu", KIND)
    np.testing.assert_allclose(out_BNH, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [({}, KIND), ({}, CAPPED), ({"data": 4, "tensor": 2}, KIND)],
    ids=["one device", "capped", "mesh"],
)
@pytest.mark.parametrize(
    ("name", "platform", "device"),
    [
        ("gpu", "cuda", AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")),
        ("tpu", "tpu", AbstractDevice("TPU v5", 1, "tpu")),
    ],
)
def test_kernels_lower_for_their_platforms(name, platform, device, sizes, kind):
    q_BNH, pages, page_BW = _inputs(jnp.bfloat16)
    decode = jax.jit(kernels.paged_attention, static_argnums=(4, 5))
    mesh = abstract_mesh(vars(MeshShape(data=1)) | sizes)
    with jax.sharding.use_abstract_mesh(mesh.update(abstract_device=device)):
        traced = decode.trace(q_BNH, pages, page_BW, LENGTH_B, name, kind)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "custom_call" in text


def test_int8_keeps_each_head_to_half_a_step_of_its_largest():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 64)) * [[[1e-3]], [[1]], [[0]]])
    stored = store_as(x, Int8(jnp.zeros((), jnp.int8), jnp.zeros(())))
    step = np.abs(x).max(axis=-1, keepdims=True) / 127
    assert (np.abs(load(stored, jnp.float32) - x) <= 0.501 * step).all()


@pytest.mark.heavy
def test_who_has_a_kernel():
    _, pages, _ = _inputs()
    quantized = LayerPages(*(store_as(x, Int8(None, None)) for x in (pages.k_GPbH, pages.v_GPbH)))
    assert kernels.has_kernel("gpu", pages, KIND) and kernels.has_kernel("tpu", pages, KIND)
    assert not kernels.has_kernel("cpu", pages, KIND)
    assert not kernels.has_kernel("gpu", quantized, KIND)
    assert not kernels.has_kernel("gpu", pages, dataclasses.replace(KIND, window=8))
    assert not kernels.has_kernel("tpu", pages, dataclasses.replace(KIND, sinks=True))


def test_each_head_of_a_token_is_written_as_a_row_of_its_own():
    """Else a TPU's compiler stores heads next to each other, and copies all pages between this form
    and the kernel's in each decode step (`python -m benchmarks.tpu_layers`)."""
    _, pages, page_BW = _inputs()
    where = page_BW, jnp.zeros((B, 1), jnp.int32), jnp.ones((B, 1), bool)
    new_BTGH = jnp.ones((B, 1, G, H))
    text = jax.jit(write_pages).lower(pages, *where, [new_BTGH, new_BTGH]).as_text()
    written = re.findall(r"stablehlo\.scatter.*?\}\) : \((tensor<[^>]*>)", text, re.DOTALL)
    assert written == [f"tensor<{G * PAGES * PAGE_TOKENS}x{H}xf32>"] * 2
