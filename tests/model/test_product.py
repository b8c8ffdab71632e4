"""Products with weights: the gradients that are written out are those that JAX derives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.compute import product


@pytest.mark.parametrize(
    "einsum, x_shape, weight_shape",
    [("btd,df->btf", (2, 5, 7), (7, 3)), ("mcd,mdf->mcf", (4, 5, 7), (4, 7, 3))],
    ids=["one weight", "one for each expert"],
)
def test_result_and_gradients(einsum, x_shape, weight_shape):
    x, weight = (
        jax.random.normal(jax.random.key(n), s) for n, s in enumerate((x_shape, weight_shape))
    )

    def outcome(multiply):
        grad = jax.grad(lambda x, w: jnp.sin(multiply(x, w)).sum(), argnums=(0, 1))
        return multiply(x, weight), *grad(x, weight)

    derived = outcome(lambda x, w: jnp.einsum(einsum, x, w))
    for ours, theirs in zip(outcome(product), derived, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.heavy
def test_gradients_have_the_types_of_the_inputs():
    x, weight = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)
    y, pull = jax.vjp(lambda x, w: product(x, w, jnp.float32), x, weight)
    assert y.dtype == jnp.float32
    assert [d.dtype for d in pull(y)] == [jnp.bfloat16, jnp.bfloat16]
    products = str(jax.make_jaxpr(pull)(y)).split("dot_general")[0]
    assert "bf16[2,4]" in products  # what comes back is rounded before it is multiplied
