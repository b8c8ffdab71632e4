"""What transformers saves is loaded, and computes what transformers computes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ale_jax.model.moe import balancing_loss, router_sums
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.weights.layout import is_stored, layout
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.model.weights.families import FAMILIES, make_model, save_model, stored_tensors

pytestmark = pytest.mark.heavy

# Two rows of 65 tokens: enough for the sorted-block dispatch.
TOKENS_BT = np.random.default_rng(0).integers(0, 96, (2, 65)).astype(np.int32)
POSITION_BT = np.tile(np.arange(65, dtype=np.int32), (2, 1))


def _forward(params, shape):
    ones_BT = jnp.ones_like(TOKENS_BT)
    hidden_BTD, stats = hidden_states(params, TOKENS_BT, POSITION_BT, ones_BT, shape)
    return logits(params, hidden_BTD), stats


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # an empty shared expert
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients_equal_transformers(name, tmp_path):
    checkpoint = open_checkpoint(save_model(name, tmp_path))
    shape, params = checkpoint.shape, load_params(checkpoint)
    assert shape == FAMILIES[name][0]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    theirs = make_model(name)
    tokens = torch.from_numpy(TOKENS_BT).long()
    out = theirs(tokens)
    torch.nn.functional.cross_entropy(
        out.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    ).backward()

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradient(params):
        logits_BTV, stats = _forward(params, shape)
        log_prob_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        nll = -jnp.take_along_axis(log_prob_BTV, TOKENS_BT[:, 1:, None], axis=-1).mean()
        return nll, (logits_BTV, stats)

    our_grads, (ours, stats) = gradient(params)
    assert np.abs(ours).max() > 1
    np.testing.assert_allclose(ours, out.logits.detach(), atol=1e-4, rtol=0)
    if stats:
        loss = balancing_loss(router_sums(stats, jnp.ones((130,)), shape), shape)
        np.testing.assert_allclose(loss, out.aux_loss.detach(), rtol=1e-5)
    their_grads = stored_tensors(
        (n, p.grad) for n, p in theirs.named_parameters() if p.grad is not None
    )
    leaves = jax.tree.leaves(layout(shape), is_leaf=is_stored)
    for stored, grad in zip(leaves, jax.tree.leaves(our_grads), strict=True):
        for tensor_name, tensor in stored.write(np.asarray(grad)):
            assert np.abs(tensor).max() > 1e-6, tensor_name
            np.testing.assert_allclose(
                tensor, their_grads[tensor_name], atol=2e-6, rtol=0, err_msg=tensor_name
            )
