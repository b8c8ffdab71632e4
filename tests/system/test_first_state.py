"""Training starts from the weights that the config names, if they are of its model."""

import importlib

import jax
import numpy as np
import pytest

from ale_jax.learn.state import make_optimizer
from ale_jax.model.lora import new_adapters, trained, with_trained
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.model.weights.peft import save_peft
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import check_devices, checked_config
from ale_jax.system.sources import check_sources
from ale_jax.system.states import first_state


def _config(weights, **changes):
    config = importlib.import_module("ale_jax.configs.smoke").get_config()
    config.update(weights=str(weights), **changes)
    return checked_config(config.to_dict())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder, and what is in it."""
    config = _config("")
    policy = policy_shape(config, config.tokenizer.vocab_size)
    params = init_params(jax.random.key(7), policy)
    folder = tmp_path_factory.mktemp("weights") / "model"
    export(folder, params, policy)
    ChatTokenizer(train_bpe([{"role": "user", "content": "The lazy dog"}] * 9, 300)).save(folder)
    return folder, params


@pytest.mark.heavy
@pytest.mark.parametrize(
    "lora", [{}, {"rank": 2, "alpha": 4.0, "rslora": False, "targets": ("q", "down"), "start": ""}]
)
def test_the_first_weights_are_those_of_the_checkpoint(checkpoint, lora):
    folder, params = checkpoint
    config = _config(folder, **({"lora": lora} if lora else {}))
    check_devices(config)
    # More tokens than the tokenizer has: the embedding is padded.
    policy = policy_shape(config, tokenizer_size=300)
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    state = first_state(config, policy, optimizer, make_mesh(config.mesh))
    assert ("adapters" in state.params) == bool(lora)
    found = {name: state.params[name] for name in params}
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.heavy
def test_adapters_start_as_a_folder_in_pefts_format_has_them(checkpoint, tmp_path):
    folder, _ = checkpoint
    lora = {"rank": 2, "alpha": 4.0, "rslora": False, "targets": ("q", "v"), "start": ""}
    config = _config(folder, lora=lora | {"start": str(tmp_path / "start")})
    policy = policy_shape(config, tokenizer_size=300)
    given = new_adapters(jax.random.key(5), policy, config.lora)
    given = with_trained(given, jax.tree.map(lambda x: x + 0.1, trained(given)))
    save_peft(tmp_path / "start", given, policy, config.lora, "base")
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    state = first_state(config, policy, optimizer, make_mesh(config.mesh))
    jax.tree.map(np.testing.assert_array_equal, trained(state.params), trained(given))
    check_sources(config)
    with pytest.raises(ValueError, match=r"has an adapter of v_DGH in layer 0: set lora\.targets"):
        check_sources(_config(folder, lora=vars(config.lora) | {"targets": ("q",)}))


def test_weights_of_another_shape_are_refused_by_field(checkpoint):
    folder, _ = checkpoint
    config = _config(folder, model={"width": 64, "num_layers": 3}, tokenizer={"vocab_size": 400})
    with pytest.raises(ValueError, match=r"model.width 64 \(stored: 32\)") as refusal:
        check_devices(config)
    assert "config.model.num_layers 3 (stored: 2)" in str(refusal.value)
    assert "config.tokenizer.vocab_size 400 (stored: 320)" in str(refusal.value)


def test_weights_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint at"):
        check_devices(_config(tmp_path / "nothing"))
