"""Training step and sampler of every kind of layer can be lowered for GPUs."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import abstract_mesh
from benchmarks.lowering import abstract_cache, traced_gradient, traced_sampler
from benchmarks.tpu_layers import ENGINE, KINDS, ROW, policy_of

pytestmark = pytest.mark.slow


class H100(AbstractDevice):
    compute_capability = "9.0"


MESH = abstract_mesh(vars(MeshShape(data=1))).update(
    abstract_device=H100("NVIDIA H100 80GB HBM3", None, "gpu")
)
# Of which kinds attention has no kernel: their layers attend in blocks.
NO_KERNEL = {"gated_delta", "short_conv"}
IN_TRAINING = KINDS.keys() - NO_KERNEL - {"cap", "sinks"}
IN_DECODING = KINDS.keys() - NO_KERNEL - {"window", "sinks", "latent"}


@pytest.mark.parametrize("name", KINDS)
def test_the_step_attends_by_a_kernel_or_in_blocks(name, monkeypatch):
    # JAX asks the GPU that is present, and lowers cuDNN's calls for it alone.
    installed = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(cudnn, "cuda_versions", installed)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda least: float(least) <= 9.0)
    with jax.sharding.use_abstract_mesh(MESH):
        traced = traced_gradient(policy_of(KINDS[name]), MESH, 1, ROW)
        text = str(traced.jaxpr)
        assert ("dot_product_attention_bwd" in text) == (name in IN_TRAINING)
        assert f"{ROW},{ROW}]" not in text
        if name not in IN_TRAINING:
            assert f"{ROW}x{ROW}x" not in _lowered(traced)


@pytest.mark.parametrize("name", KINDS)
def test_the_sampler_decodes_by_a_kernel_or_in_blocks_and_keeps_its_pages(name):
    policy = policy_of(KINDS[name])
    with jax.sharding.use_abstract_mesh(MESH):
        text = _lowered(traced_sampler(policy, MESH, ENGINE))
    assert ("__gpu$xla.gpu.triton" in text) == (name in IN_DECODING)
    assert f"{ROW}x{ROW}x" not in text
    kept = jax.tree.leaves(abstract_cache(policy, ENGINE, "gpu"))
    assert len(re.findall("tf.aliasing_output", text)) == len(kept), "each is changed in place"


@pytest.mark.parametrize("tokens, products", [(16, 0), (256, 3)])
@pytest.mark.parametrize("name", ["experts", "clamped_experts"])
def test_few_tokens_read_no_experts_that_they_did_not_choose(name, tokens, products):
    """Of prefill batches of these tokens, and of decode steps of 16."""
    policy, sizes = policy_of(KINDS[name]), dataclasses.replace(ENGINE, prefill_tokens=(tokens,))
    with jax.sharding.use_abstract_mesh(MESH):
        text = _lowered(traced_sampler(policy, MESH, sizes))
    maps = "tensor<32x(?:2048x768|768x2048)xbf16>"
    assert len(re.findall(rf"stablehlo.dot_general .*{maps}", text)) == products
    kernels = len(re.findall(r"triton_kernel_call|__gpu\$xla.gpu.triton", text))
    assert kernels == 1 + 3 * (1 if products else 2), "attention's, and three products of experts"


def _lowered(traced):
    return traced.lower(lowering_platforms=("cuda",)).as_text()
