"""Each family computes what transformers computes, and what is exported is read by it."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ale_jax.model.families.registry import FAMILIES
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.weights.config import read_config
from ale_jax.model.weights.export import export
from ale_jax.model.weights.layout import is_stored, layout
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.mutations import judge, mutate
from benchmarks.families.tiny import (
    OF_FAMILY,
    VOCAB,
    YARN,
    make_config,
    make_model,
    their_logits,
)

pytestmark = pytest.mark.heavy

# Two rows of 65 tokens: more than one window, and enough for the dispatch of many tokens.
TOKENS_BT = np.random.default_rng(0).integers(3, VOCAB, (2, 65)).astype(np.int32)
POSITION_BT = np.tile(np.arange(65, dtype=np.int32), (2, 1))
CLOSE = 1e-5  # of the largest
UNCUT = {"truncate": False}
TRAINED = {"original_max_position_embeddings": 64}


def test_every_family_is_tested():
    assert OF_FAMILY.keys() == FAMILIES.keys()


@pytest.fixture(scope="module", params=OF_FAMILY)
def pair(request, tmp_path_factory):
    """transformers' model, the shape, and the weights that were read from what it saved."""
    folder = tmp_path_factory.mktemp(request.param)
    model = make_model(request.param)
    model.save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    return model, checkpoint.shape, load_params(checkpoint)


def close(found, expected, name=""):
    largest = np.abs(expected).max()
    assert largest > 1e-6, name
    np.testing.assert_allclose(found / largest, expected / largest, atol=CLOSE, err_msg=name)


def loss_of(params, shape):
    hidden_BTD, _ = hidden_states(params, TOKENS_BT, POSITION_BT, jnp.ones_like(TOKENS_BT), shape)
    logits_BTV = logits(params, hidden_BTD, shape.logit_cap)
    log_prob_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
    nll = -jnp.take_along_axis(log_prob_BTV, TOKENS_BT[:, 1:, None], axis=-1).mean()
    return nll, logits_BTV


def test_logits_and_gradients_are_theirs(pair):
    model, shape, params = pair
    ours_of = jax.jit(jax.grad(loss_of, has_aux=True), static_argnums=1)
    gradient, ours = ours_of(params, shape)
    tokens = torch.from_numpy(TOKENS_BT).long()
    theirs = model(tokens).logits
    close(ours, theirs.detach().numpy())
    loss = torch.nn.functional.cross_entropy(theirs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    total = sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None)
    leaves = zip(
        jax.tree.leaves(layout(shape), is_leaf=is_stored), jax.tree.leaves(gradient), strict=True
    )
    frozen = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    ours = sum(float((g**2).sum()) for stored, g in leaves if not stored.names[0].endswith(frozen))
    np.testing.assert_allclose(ours, total, rtol=1e-4)
    close(gradient["embed_VD"], model.get_input_embeddings().weight.grad.numpy())


LONG = {"short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [2.0, 3.0, 4.0, 8.0]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
POSITIONS = {
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0}),
    "llama3": ("cwm", {"rope_type": "llama3", "original_max_position_embeddings": 32} | LLAMA3),
    "yarn": ("mistral", {"rope_type": "yarn", "factor": 8.0} | TRAINED),
    "yarn, untruncated": (
        "olmo2",
        {"rope_type": "yarn", "factor": 8.0} | TRAINED | UNCUT,
    ),
    "long": ("phi3", {"rope_type": "longrope"} | LONG),
}


@pytest.mark.parametrize(("family", "rope"), POSITIONS.values(), ids=POSITIONS)
def test_scaled_positions_are_theirs(family, rope, tmp_path):
    own = {"head_dim": 16} if family != "phi3" else {"original_max_position_embeddings": 1024}
    if family == "phi3":  # four pairs
        own |= {"hidden_size": 32, "partial_rotary_factor": 1.0}
    model = make_model(family, rope_parameters=rope | {"rope_theta": 1e4}, **own)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shape.layers[0].mixer.rope.scaling is not None
    hidden_BTD, _ = hidden_states(
        load_params(checkpoint), TOKENS_BT, POSITION_BT, jnp.ones_like(TOKENS_BT), checkpoint.shape
    )
    close(
        logits(load_params(checkpoint), hidden_BTD, checkpoint.shape.logit_cap),
        their_logits(model, TOKENS_BT),
    )


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("glm4_moe", {"n_group": 3}, "8 experts cannot be divided into 3 groups"),
        ("glm4_moe", {"n_group": 8}, "8 experts cannot be divided into 8 groups"),
        ("glm4_moe", {"topk_group": 5}, "2 experts cannot be chosen among 5 of 4 groups"),
        ("dots1", {"num_experts_per_tok": 5}, "5 experts cannot be chosen among 2 of 4 groups"),
        ("lfm2", {"intermediate_size": 1}, "leaves feed-forwards no width"),
        (
            "mellum",
            {"rope_parameters": {"full_attention": YARN | UNCUT, "sliding_attention": {}}},
            "truncate False is not supported",
        ),
        ("ernie4_5_moe", {"moe_norm_min": 0.5}, "moe_norm_min 0.5 is not supported"),
        (
            "qwen3",
            {"rope_parameters": YARN | {"rope_theta": 1.0}},
            "rope_theta 1.0 must be above 1",
        ),
    ],
)
def test_numbers_that_no_model_can_have_are_refused(family, changes, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(make_config(family, **changes).to_dict()))
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_damaged_configurations_are_refused_or_equal(tmp_path):
    draw, found = random.Random(1), set()
    model = make_model("olmo3")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for _ in range(12):
        changed, _ = mutate(draw, config)
        (tmp_path / "config.json").write_text(json.dumps(changed))
        found.add(judge(tmp_path))
    assert found == {"refused", "equal"}
    # What is judged can be silent: other weights than those of the file.
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert judge(tmp_path) == "equal"


def test_an_export_is_read_by_transformers(pair, tmp_path):
    model, shape, params = pair
    export(tmp_path / "out", params, shape)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    theirs = dict(model.state_dict())
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, theirs.pop(name)), name
    assert not theirs
    assert open_checkpoint(tmp_path / "out").shape == shape
