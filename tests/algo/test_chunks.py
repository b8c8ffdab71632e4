import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo import ratio

# Row 0: two chunks with an observation between; row 1: chunk 0 empty, chunk 1, padding.
CHUNK_BT = jnp.array([[-1, 0, 0, -1, 1], [-1, 1, 1, 1, -1]])
X_BT = jnp.array([[9.0, 1.0, 3.0, 9.0, 5.0], [9.0, 1.0, 2.0, 6.0, 9.0]])


@pytest.fixture(params=["eager", "jit"])
def compiled(request):
    return (lambda f: jax.jit(f, static_argnums=2)) if request.param == "jit" else (lambda f: f)


def test_sum_mean_count_by_hand(compiled):
    np.testing.assert_array_equal(
        compiled(ratio.chunk_sum)(X_BT, CHUNK_BT, 3), [[4, 5, 0], [0, 9, 0]]
    )
    np.testing.assert_array_equal(
        compiled(ratio.chunk_mean)(X_BT, CHUNK_BT, 3), [[2, 5, 0], [0, 3, 0]]
    )
    np.testing.assert_array_equal(ratio.chunk_count(CHUNK_BT, 3), [[2, 1, 0], [0, 3, 0]])


def test_tokens_outside_every_chunk_get_nothing():
    token_BT = ratio.chunk_to_token(jnp.array([[2.0, 3.0], [7.0, 4.0]]), CHUNK_BT)
    np.testing.assert_array_equal(token_BT, [[0, 2, 2, 0, 3], [0, 4, 4, 4, 0]])


def test_chunk_to_token_undoes_the_mean_of_constant_chunks():
    value_BC = jnp.array([[2.0, 3.0], [0.0, 4.0]])
    token_BT = ratio.chunk_to_token(value_BC, CHUNK_BT)
    np.testing.assert_array_equal(ratio.chunk_mean(token_BT, CHUNK_BT, 2), value_BC)


def test_vmap_over_microbatches_equals_one_by_one():
    x_MBT, chunk_MBT = jnp.stack([X_BT, 2 * X_BT]), jnp.stack([CHUNK_BT, CHUNK_BT[::-1]])
    mapped = jax.vmap(ratio.chunk_mean, in_axes=(0, 0, None))(x_MBT, chunk_MBT, 3)
    for m in range(2):
        np.testing.assert_array_equal(mapped[m], ratio.chunk_mean(x_MBT[m], chunk_MBT[m], 3))


def test_nan_outside_chunks_reaches_neither_value_nor_gradient():
    x_BT = jnp.where(CHUNK_BT >= 0, X_BT, jnp.nan)
    total, grad_BT = jax.value_and_grad(lambda x: ratio.chunk_sum(x, CHUNK_BT, 2).sum())(x_BT)
    assert total == 18.0
    np.testing.assert_array_equal(grad_BT, (CHUNK_BT >= 0).astype(jnp.float32))
