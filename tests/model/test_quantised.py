"""Weights in eight bits: how far from the true ones, and what stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.model import Compute
from ale_jax.model.compute import Quantised, dequantise, in_step, quantise, weight
from ale_jax.model.sampling_weights import sampling_weights
from tests.model.shapes import MIXED, QWEN2
from tests.model.weights.families import random_params

ARRAY_EDF = np.random.default_rng(0).normal(0, 0.1, (2, 8, 5)).astype(np.float32)
ARRAY_EDF[0, :, 1] *= 1000  # a channel of its own, whose size is nothing to the others
ARRAY_EDF[1, :, 2] = 0


@pytest.mark.parametrize(
    ("form", "largest", "of_value", "of_scale"),
    [("int8", 127, 0.0, 0.5), ("fp8", 448, 2**-4, 2**-10)],  # half a step; three bits of mantissa
)
def test_each_channel_is_off_by_half_a_step_at_most(form, largest, of_value, of_scale):
    stored = quantise(ARRAY_EDF, (1,), form)
    assert stored.value.dtype.itemsize == 1 and stored.scale.shape == (2, 1, 5)
    most_E1F = np.abs(ARRAY_EDF).max(axis=1, keepdims=True)
    np.testing.assert_allclose(stored.scale, most_E1F / largest, rtol=1e-6)
    error = np.abs(dequantise(stored) - ARRAY_EDF)
    bound = of_value * np.abs(ARRAY_EDF) + of_scale * most_E1F / largest
    assert (error <= bound * 1.001).all()
    assert error.max() > 0 and (error[1, :, 2] == 0).all()


@pytest.mark.parametrize("shape", [MIXED, QWEN2], ids=["moe", "biases"])
def test_matrices_of_layers_are_stored_in_eight_bits_and_the_rest_is_not(shape):
    params = random_params(shape)
    served = sampling_weights(params, shape, Compute("bfloat16"), stored_as="int8")
    for layer, original in zip(served["layers"], params["layers"], strict=True):
        eighth = {name for name, stored in layer.items() if isinstance(stored, Quantised)}
        matrices = {n for n in layer if n[0] in "qkvogud" and "norm" not in n and "bias" not in n}
        assert eighth == matrices and len(matrices) == 7
        for name in layer.keys() - eighth:
            exact = "norm" in name or "router" in name
            assert layer[name].dtype == (jnp.float32 if exact else jnp.bfloat16)
        # From the learner's float32, not from what was rounded to bfloat16 first.
        down = next(name for name in eighth if name.startswith("down"))
        dims = tuple(range(original[down].ndim))[-2:-1]
        np.testing.assert_array_equal(
            layer[down].value, quantise(original[down], dims, "int8").value
        )
        assert weight(layer, down, jnp.bfloat16).dtype == jnp.bfloat16
    assert served["embed_VD"].dtype == jnp.bfloat16


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_a_loop_reads_eight_bits_in_each_of_its_steps(form):
    stored = quantise(ARRAY_EDF[0, :5], (0,), form)
    params = {"layers": [{"w_DD": stored}]}

    @jax.jit
    def run(params, x_TD):
        def step(i, x_TD):
            weights, i = in_step(params, i)
            return x_TD @ weight(weights["layers"][0], "w_DD", x_TD.dtype) + i

        return jax.lax.fori_loop(0, 9, step, x_TD)

    program = run.lower(params, jnp.ones((2, 5))).compile().as_text()
    carried = next(line for line in program.splitlines() if " while(" in line)
    assert {"int8": "s8[5,5]", "fp8": "f8e4m3fn[5,5]"}[form] in carried
