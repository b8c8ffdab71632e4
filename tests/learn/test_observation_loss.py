"""The learner scores what the environment answered, in the forward pass of the policy's loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.learn.learner import assemble
from ale_jax.learn.rows import to_device
from ale_jax.learn.step import ModelSpec, gradient_function, make_loss
from ale_jax.model.params import init_table, param_table
from ale_jax.model.policy import hidden_states, logits
from tests.learn.test_assemble import EQUAL, IPA
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, changed

TINY = changed(DENSE, num_layers=1)
SHAPE = Shape(microbatch_rows=2, pack_length=20, chunks_per_pack=4)
WEIGHT = 0.1
ALGO = dataclasses.replace(IPA, loss=LossHypers("vanilla", observation_weight=WEIGHT))


def nll_of_answers(params, trajectory):
    """-log pi of the prompts of all turns but the first, of one trajectory without packing."""
    parts = [ids for turn in trajectory.turns for ids in (turn.prompt_ids, turn.action_ids)]
    ids_T = np.concatenate(parts)
    begins = np.cumsum([0, *map(len, parts)])
    answers = [slice(begins[i], begins[i + 1]) for i in range(2, len(parts), 2)]
    place_1T = jnp.arange(len(ids_T))[None]
    hidden, _ = hidden_states(params, jnp.asarray(ids_T)[None], place_1T, place_1T * 0 + 1, TINY)
    logp_TV = jax.nn.log_softmax(logits(params, hidden)[0])
    place_U = np.concatenate([np.arange(s.start, s.stop) for s in answers])
    return -logp_TV[place_U - 1, ids_T[place_U]].sum()


def test_a_group_without_advantages_learns_what_it_was_answered():
    mesh = mesh_of()
    params = init_table(jax.random.key(0), param_table(TINY))
    made = assemble([EQUAL], ALGO, SHAPE)
    (batch,) = made.batches
    assert not batch.advantage_BT.any() and made.minibatches[0].loss_denominator == 2 * 5
    gradient = jax.jit(gradient_function(ModelSpec(TINY, mesh), make_loss(ALGO, 4)))
    with jax.set_mesh(mesh):
        grads, sums, tokens = gradient(
            params, params, to_device(batch, mesh), made.minibatches[0].loss_denominator, 1.0
        )

    def expected_loss(params):
        nll = sum(nll_of_answers(params, member) for member in EQUAL.members)
        return WEIGHT * nll / made.minibatches[0].loss_denominator, nll

    (loss, nll), expected = jax.jit(jax.value_and_grad(expected_loss, has_aux=True))(params)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(sums["observation_nll"], nll, rtol=1e-5)
    assert sums["observation_tokens"] == 2 and loss > 0.01
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), grads, expected)
    credit_BT = np.asarray(tokens.credit_BT)
    np.testing.assert_allclose(credit_BT[credit_BT != 0], [WEIGHT] * 2, rtol=1e-6)
