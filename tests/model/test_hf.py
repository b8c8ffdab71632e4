"""The policy is what transformers defines: the same logits and the same balancing loss."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from ale_jax.model import hf
from ale_jax.model.moe import balancing_loss
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from tests.model.shapes import DENSE, LLAMA, MIXED, MOE, QWEN2


@pytest.mark.parametrize(
    ("shape", "config_class", "model_class"),
    [
        (MOE, Qwen3MoeConfig, Qwen3MoeForCausalLM),
        (MIXED, Qwen3MoeConfig, Qwen3MoeForCausalLM),
        (DENSE, Qwen3Config, Qwen3ForCausalLM),
        (QWEN2, Qwen2Config, Qwen2ForCausalLM),
        (LLAMA, LlamaConfig, LlamaForCausalLM),
    ],
    ids=["moe", "first layer dense", "dense", "qwen2", "llama"],
)
def test_logits_equal_transformers(shape, config_class, model_class):
    params = _scrambled_norms(init_params(jax.random.key(0), shape))
    theirs = model_class(config_class(**hf.to_transformers_config(shape))).eval()
    weights = hf.to_transformers_weights(params, shape)
    loaded = {k: torch.tensor(w.copy()) for k, w in weights.items()}
    missing, unexpected = theirs.load_state_dict(loaded, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    # Two rows of 65 tokens: enough for the sorted-block dispatch.
    tokens_BT = np.random.default_rng(0).integers(0, shape.vocab_size, (2, 65)).astype(np.int32)
    with torch.no_grad():
        out = theirs(
            torch.from_numpy(tokens_BT).long(),
            **({"output_router_logits": True} if shape.is_moe else {}),
        )
    position_BT = jnp.tile(jnp.arange(65)[None, :], (2, 1))
    segment_BT = jnp.ones((2, 65), jnp.int32)
    hidden_BTD, stats = hidden_states(params, tokens_BT, position_BT, segment_BT, shape)
    ours = logits(params, hidden_BTD)
    assert np.abs(np.asarray(ours)).max() > 0.5
    np.testing.assert_allclose(ours, out.logits.numpy(), atol=1e-4, rtol=0)
    if shape.is_moe:
        loss = balancing_loss(stats, jnp.ones((130,)), shape)
        np.testing.assert_allclose(loss, out.aux_loss.numpy(), rtol=1e-5)


def _scrambled_norms(params):
    """Norm scales and biases drawn at random: as they begin, a forgotten one would not show."""

    def scramble(path, leaf):
        if not any(part in jax.tree_util.keystr(path) for part in ("norm", "bias")):
            return leaf
        key = jax.random.key(zlib.crc32(jax.tree_util.keystr(path).encode()))
        return leaf + 0.3 * jax.random.normal(key, leaf.shape)

    return jax.tree_util.tree_map_with_path(scramble, params)
