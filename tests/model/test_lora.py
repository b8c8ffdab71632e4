"""Adapters change nothing at first, are trained alone, and merge into the same function."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.model import ALL_LINEAR, Compute, LoraShape
from ale_jax.data.packing import pack_all
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_train_step
from ale_jax.model.lora import chosen_maps, map_name, merged, new_adapters
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import make_mesh, spec
from tests.learn.test_step import MUON, sample_transcripts, transcript_loss
from tests.model.shapes import DENSE, MIXED

LORA = LoraShape(rank=4, alpha=8.0, targets=(ALL_LINEAR,))
NAMES = ["q", "k", "v", "o", "gate", "up", "down"]
TOKENS_BT = jnp.asarray(np.random.default_rng(0).integers(0, 96, (1, 24)))


@jax.jit
def _logits(params):
    position_BT = jnp.arange(TOKENS_BT.shape[1])[None]
    hidden, _ = hidden_states(params, TOKENS_BT, position_BT, jnp.ones_like(TOKENS_BT), MIXED)
    return logits(params, hidden)


@pytest.fixture(scope="module")
def trained():
    """Weights before and after two steps on a mesh, and the number of moments."""
    mesh = make_mesh(MeshShape(data=2, expert=2, tensor=2))
    optimizer = make_optimizer(MUON, MIXED, LORA)
    state = init_state(jax.random.key(0), MIXED, optimizer, mesh, LORA)
    moments = sum(moment.size for moment in jax.tree.leaves(state.opt_state))
    before = jax.device_get(state.params)
    step = make_train_step(ModelSpec(MIXED, mesh, lora=LORA), optimizer, transcript_loss)
    batches = pack_all(sample_transcripts(16), Shape(8, 64, 8))
    for _ in range(2):
        state, *_ = step(state, batches, 100.0)
    assert state.params["adapters"][1]["up_EDF"]["b"].sharding.spec == spec(
        ("experts", None, "ffw")
    )
    return before, jax.device_get(state.params), moments


@pytest.mark.heavy
def test_new_adapters_change_nothing(trained):
    before, _, _ = trained
    plain = {name: w for name, w in before.items() if not name.startswith("adapter")}
    np.testing.assert_array_equal(_logits(before), _logits(plain))


@pytest.mark.heavy
def test_only_adapters_are_trained_and_have_moments(trained):
    before, after, moments = trained
    assert before["adapter_scale"] == 8.0 / 4, "alpha / rank, as PEFT scales what is exported"
    for name in before.keys() - {"adapters"}:
        jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
    assert len(after["adapters"]) == MIXED.num_layers
    for adapters in after["adapters"]:
        assert {map_name(name) for name in adapters} == set(NAMES)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), before["adapters"], after["adapters"])
    assert all(jax.tree.leaves(changed))
    sizes = sum(a.size for a in jax.tree.leaves(after["adapters"]))
    assert sizes <= moments < sizes + 10  # of Muon one each, and counts of steps


def test_merged_weights_compute_the_same(trained):
    before, after, _ = trained
    found = merged(after)
    assert jax.tree.structure(found) == jax.tree.structure(init_params(jax.random.key(0), MIXED))
    assert np.abs(_logits(after) - _logits(before)).max() > 0.01
    np.testing.assert_allclose(_logits(found), _logits(after), atol=1e-5)


def test_a_sampler_is_given_scaled_adapters_in_the_type_of_its_products(trained):
    _, after, _ = trained
    served = sampling_weights(after, MIXED, Compute("bfloat16"))
    layer, own = served["layers"][1], after["adapters"][1]["up_EDF"]
    assert served["layers"][0]["attn_norm_D"].dtype == jnp.float32
    np.testing.assert_array_equal(
        layer["up_EDF"], after["layers"][1]["up_EDF"].astype(jnp.bfloat16)
    )
    adapter = served["adapters"][1]["up_EDF"]
    assert adapter["a"].dtype == adapter["b"].dtype == jnp.bfloat16
    np.testing.assert_allclose(adapter["a"].astype("f4"), 2.0 * own["a"], rtol=0.01)
    np.testing.assert_allclose(adapter["b"].astype("f4"), own["b"], rtol=0.01)


def test_weights_that_need_nothing_are_served_as_they_are():
    params = init_params(jax.random.key(0), MIXED)
    assert sampling_weights(params, MIXED, Compute()) is params


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"rank": -1}, "rank -1 must be at least 0"),
        ({"alpha": 0.0}, "lora.alpha 0.0 must be > 0"),
        ({"targets": ()}, "lora.targets is empty: 'all-linear' takes all maps"),
        ({"rank": 0, "start": "there"}, "lora.start 'there' has no meaning at lora.rank 0"),
    ],
)
def test_an_impossible_adapter_is_refused(changes, answer):
    with pytest.raises(ValueError, match=answer):
        dataclasses.replace(LORA, **changes)


@pytest.mark.parametrize(
    ("targets", "chosen"),
    [
        (("gate", "q"), [["q_DNH", "gate_DF"], ["q_DNH", "gate_EDF"]]),
        (("layers.1.[kv]", "o"), [["o_NHD"], ["k_DGH", "v_DGH", "o_NHD"]]),
        (("layers.*.*o*",), [["o_NHD", "down_FD"], ["o_NHD", "down_EFD"]]),
    ],
)
def test_targets_are_names_or_patterns_of_them(targets, chosen):
    assert chosen_maps(MIXED, targets) == chosen


def test_a_target_that_no_map_has_is_refused_with_those_that_there_are():
    for target in ("router", "q_proj", "layers.2.*", "q_DNH"):
        with pytest.raises(ValueError, match=r"fits no linear map of the 2 layers: choose all-lin"):
            chosen_maps(MIXED, ("q", target))
    with pytest.raises(ValueError, match="all-linear, some of q, k, v, o, gate, up, down, or"):
        chosen_maps(MIXED, ("attention",))


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank():
    lora = dataclasses.replace(LORA, rank=16, rslora=True)
    assert new_adapters(jax.random.key(1), DENSE, lora)["adapter_scale"] == 8.0 / 4
