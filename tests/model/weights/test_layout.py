"""Any part of any weight is read as that part of the whole."""

import jax
import numpy as np
import pytest

from ale_jax.model.weights.layout import is_stored, layout
from tests.model.shapes import DENSE, MIXED, QWEN2, changed
from tests.model.weights.families import random_params

pytestmark = pytest.mark.heavy

# Together they have every weight there is.
SHAPES = {"experts": MIXED, "untied": DENSE, "biases": changed(QWEN2, num_layers=1)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_part_is_read_as_of_the_whole(shape):
    draw = np.random.default_rng(0)
    leaves = jax.tree.leaves(layout(shape), is_leaf=is_stored)
    for stored, weight in zip(leaves, jax.tree.leaves(random_params(shape)), strict=True):
        weight = np.asarray(weight)
        tensors = dict(stored.write(weight))
        assert {tensor.shape for tensor in tensors.values()} == {stored.tensor_shape}

        def read_tensor(name, bounds, tensors=tensors):
            return tensors[name][tuple(slice(*each) for each in bounds)]

        for _ in range(5):
            cuts = [sorted(draw.choice(size + 1, 2, replace=False)) for size in weight.shape]
            bounds = tuple((int(start), int(stop)) for start, stop in cuts)
            part = stored.read(bounds, read_tensor, weight.dtype)
            np.testing.assert_array_equal(part, weight[tuple(slice(*each) for each in bounds)])
