"""Weights are rounded once for all microbatches of a step, and the gradient is the same."""

import re

import jax
import numpy as np
import pytest

from ale_jax.config.learn import Shape
from ale_jax.config.model import Compute, LoraShape
from ale_jax.data.packing import pack_all
from ale_jax.learn.rows import to_device
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, UpdateStep, gradient_function, make_train_step
from ale_jax.model.lora import trained
from ale_jax.model.rounded import abstract_rounded, with_rounded
from tests.learn.test_step import HYPERS, sample_transcripts, transcript_loss
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, MOE, changed

pytestmark = pytest.mark.heavy

UNTIED = changed(DENSE, num_layers=2, tie_embeddings=False)
TIED = changed(MOE, num_layers=2, tie_embeddings=True)
FULL, ADAPTERS = LoraShape(), LoraShape(rank=2, alpha=4.0, targets=("q", "down"))
CASES = {
    "adapters": (changed(DENSE, num_layers=1), {}, ADAPTERS),
    "experts": (TIED, {"fsdp": 2, "expert": 2}, FULL),
    "mesh": (UNTIED, {"fsdp": 2, "tensor": 2, "data": 2}, FULL),
}


@pytest.mark.parametrize(("shape", "axes", "lora"), CASES.values(), ids=CASES)
def test_weights_are_rounded_once_and_the_gradient_is_the_same_to_the_bit(shape, axes, lora):
    mesh, optimizer = mesh_of(**axes), make_optimizer(HYPERS, shape, lora)
    model = ModelSpec(shape, mesh, Compute("bfloat16"), lora)
    state = init_state(jax.random.key(0), shape, optimizer, mesh, lora)
    batches = pack_all(sample_transcripts(40), Shape(8, 64, 8))
    assert len(batches) > 1
    once = make_train_step(model, optimizer, transcript_loss)
    each = UpdateStep(
        gradient_function(model, transcript_loss), optimizer, trained(state.params), mesh
    )
    sums, casts, weights = {}, {}, {}
    with jax.set_mesh(mesh):
        arrays = to_device(batches[0], mesh)
        for name, step in (("once", once), ("each", each)):
            (sums[name], _), _ = step._summed(state.params, batches, 50.0)
            weights[name] = given = step._ready(state.params)
            rest = *given, arrays, 50.0, 0.5
            lowered = step.add_gradient.lower(step.nothing(*rest), *rest)
            casts[name] = _casts(lowered), _matrices(lowered, "f32"), _matrices(lowered, "bf16")
    assert max(np.abs(x).max() for x in jax.tree.leaves(sums["once"])) > 1e-2
    jax.tree.map(np.testing.assert_array_equal, sums["once"], sums["each"])
    (none, totals, rounded), (some, both, nothing) = casts["once"], casts["each"]
    left = len(jax.tree.leaves(trained(state.params))) // 2 if lora.rank else 0  # small ones
    assert none == left < some, "of arguments of the lowered program"
    assert nothing == 0 < rounded and totals < both, "of what the compiled program is given"
    planned = with_rounded(state.params, abstract_rounded(state.params, "bfloat16"))
    jax.tree.map(_assert_planned, weights["once"], planned)


def _assert_planned(found, planned):
    assert (found.shape, found.dtype) == (planned.shape, planned.dtype)
    assert found.sharding.is_equivalent_to(planned.sharding, found.ndim)


def _casts(lowered):
    cast = r"stablehlo.convert %arg\d+ : \(tensor<[\dx]+xf32>\) -> tensor<[\dx]+xbf16>"
    return len(re.findall(cast, lowered.as_text()))


def _matrices(lowered, dtype):
    """How many arrays of a type, with two dims or more, the compiled program is given."""
    text = lowered.compile().as_text()
    (given,) = re.findall(r"entry_computation_layout=\{\((.*?)\)->", text)
    return len(re.findall(rf"(?<!\w){dtype}\[\d+,", given))
