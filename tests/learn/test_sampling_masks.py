"""A step on tokens that were sampled under masks and at a temperature: its gradient is that of the
policy that they were sampled from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.engine import Sampling
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import Sample, pack_all
from ale_jax.learn.step import ModelSpec, gradient_function
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.sharding import make_mesh
from ale_jax.records import FORCED, FREE
from tests.data.make_trajectories import make_turn
from tests.model.shapes import DENSE
from tests.model.test_guides import pack_bits

V, CHUNKS, Z = DENSE.vocab_size, 8, 11.0
HP = LossHypers("topr", "chunk", ratio_cap=1.0, entropy_weight=0.1)
PARAMS = init_params(jax.random.key(0), DENSE)


def loss_fn(scores, arrays, loss_denominator):
    args = arrays, loss_denominator, CHUNKS, HP, MismatchHypers()
    return policy_loss(scores.logp_BT, scores.entropy_BT, *args)


GRADIENT = jax.jit(gradient_function(ModelSpec(DENSE, make_mesh(MeshShape())), loss_fn))


def held_turn(rng, allowed_IV):
    """A turn whose tokens were drawn under masks 0 and 1, freely, or without a choice."""
    mask_id = rng.integers(FORCED, len(allowed_IV), 6).astype(np.int16)
    sets = [allowed_IV[n] if n >= 0 else np.ones(V, bool) for n in mask_id]
    ids = [rng.choice(np.flatnonzero(allowed_V)) for allowed_V in sets]
    return dataclasses.replace(make_turn(rng.integers(4, V, 3), ids), mask_id=mask_id)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(3):
        allowed_IV = rng.random((2, V)) < 0.2
        turns = (held_turn(rng, allowed_IV), make_turn([5], [6, 7]), held_turn(rng, allowed_IV))
        advantage_C = rng.normal(size=3).astype(np.float32)
        how = {"mask_Iw": pack_bits(allowed_IV), "sampling": Sampling(temperature=0.7)}
        samples.append(Sample(turns, advantage_C, **how))
    (batch,) = pack_all(samples, Shape(8, 64, CHUNKS))
    return batch


def arrays_of(batch):
    return {name: jnp.asarray(x) for name, x in vars(batch).items() if x is not None}


def written_out(params, batch):
    """The loss with the distribution of every token in memory."""
    arrays, mask_id_BT = arrays_of(batch), batch.mask_id_BT
    places = arrays["tokens_BT"], arrays["position_BT"], arrays["segment_BT"]
    hidden_BTD, _ = hidden_states(params, *places, DENSE)
    logit_BTV = jnp.roll(logits(params, hidden_BTD), 1, axis=1)  # those that a token came from
    logit_BTV /= jnp.where(batch.chunk_BT >= 0, 0.7, 1.0)[..., None]
    v = np.arange(V)
    bit_BIV = (batch.mask_BIw[:, :, v // 32] >> (v % 32)[None, None]) & 1
    rows = np.arange(len(mask_id_BT))[:, None]
    allowed_BTV = bit_BIV[rows, np.maximum(mask_id_BT, 0)] == 1
    allowed_BTV |= (mask_id_BT == FREE)[..., None]
    own_BTV = batch.tokens_BT[..., None] == v[None, None]
    allowed_BTV = np.where((mask_id_BT == FORCED)[..., None], own_BTV, allowed_BTV)
    logp_BTV = jax.nn.log_softmax(logit_BTV, where=allowed_BTV)
    logp_BTV = jnp.where(allowed_BTV, logp_BTV, 0.0)
    p_BTV = jnp.where(allowed_BTV, jnp.exp(logp_BTV), 0.0)
    logp_BT = jnp.where(own_BTV, logp_BTV, 0.0).sum(-1)
    entropy_BT = -(p_BTV * logp_BTV).sum(-1)
    loss, _ = policy_loss(logp_BT, entropy_BT, arrays, Z, CHUNKS, HP, MismatchHypers())
    return loss


def test_the_gradient_of_a_step_is_that_of_the_policy_that_was_sampled_from(batch):
    grads, sums, update = GRADIENT(PARAMS, PARAMS, arrays_of(batch), Z, 1.0)
    reference = jax.jit(jax.value_and_grad(lambda params: written_out(params, batch)))
    loss, expected = reference(PARAMS)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), grads, expected)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) > 1e-2
    forced_BT = batch.mask_id_BT == FORCED
    assert forced_BT.any() and not np.asarray(update.logp_BT)[forced_BT].any()


@pytest.mark.heavy
def test_at_temperature_1_and_free_a_batch_is_computed_as_one_that_says_nothing(batch):
    free = dataclasses.replace(batch, mask_id_BT=np.full_like(batch.mask_id_BT, FREE))
    free = dataclasses.replace(free, temperature_BT=np.ones_like(batch.temperature_BT))
    plain = dataclasses.replace(batch, temperature_BT=None, mask_id_BT=None, mask_BIw=None)
    every = [GRADIENT(PARAMS, PARAMS, arrays_of(each), Z, 1.0) for each in (free, plain, batch)]
    jax.tree.map(np.testing.assert_array_equal, *every[:2])
    assert every[2][1]["loss"] != every[1][1]["loss"]
