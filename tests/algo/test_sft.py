import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.losses import sft_loss


def test_only_what_chunks_wrote_is_learned():
    logp_BT = jnp.array([[jnp.nan, -1.0, -2.0, jnp.nan], [jnp.nan, -4.0, -9.0, -9.0]])
    chunk_BT = jnp.array([[-1, 0, 0, -1], [-1, 0, -1, -1]])
    (loss, metrics), grad_BT = jax.value_and_grad(sft_loss, has_aux=True)(logp_BT, chunk_BT, 3.0)
    np.testing.assert_allclose(loss, 7.0 / 3)
    np.testing.assert_allclose(grad_BT, -np.array([[0, 1, 1, 0], [0, 1, 0, 0]]) / 3)
    assert metrics == {"tokens": 3.0, "nll": 7.0}


def test_nothing_to_learn_costs_nothing():
    loss, _ = sft_loss(jnp.full((2, 3), -1.0), jnp.full((2, 3), -1), 1.0)
    assert loss == 0.0
