"""Checkpoints hold adapters alone, and know which weights these belong to."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import ALL_LINEAR, LoraShape
from ale_jax.learn.checkpoint import state_bytes
from ale_jax.learn.stored import digests_of
from ale_jax.model.lora import trained
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.trainer import STATE, Trainer
from tests.model.shapes import MOE

LORA = LoraShape(rank=2, alpha=4.0, targets=(ALL_LINEAR,))
MESH = MeshShape(data=2, fsdp=2, expert=2)


def test_digests_do_not_depend_on_devices_and_change_with_any_bit():
    params = init_params(jax.random.key(0), MOE)
    alone = np.asarray(digests_of(params, make_mesh(MeshShape(data=8))))
    mesh = make_mesh(MESH)
    over = digests_of(jax.device_put(params, param_shardings(MOE, mesh)), mesh)
    np.testing.assert_array_equal(over, alone)
    assert len(set(alone)) > len(alone) // 2, "of equal weights, such as scales of norms"
    first, second = params["layers"]
    router = np.asarray(second["router_DE"])
    two_signs = router * np.where(np.arange(router.size).reshape(router.shape) < 2, -1, 1)
    for changed in (router[::-1], two_signs):
        other = params | {"layers": [first, second | {"router_DE": jax.numpy.asarray(changed)}]}
        assert (np.asarray(digests_of(other, mesh)) != alone).sum() == 1


def _trainer(**changes):
    values = importlib.import_module("ale_jax.configs.smoke").get_config().to_dict()
    config = dataclasses.replace(checked_config(values), lora=LORA, **changes)
    policy = policy_shape(config, config.tokenizer.vocab_size)
    return Trainer(config, policy, make_mesh(config.mesh))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A trainer, and the folder of its state."""
    trainer = _trainer()
    trainer.begin()
    folder = tmp_path_factory.mktemp("checkpoint") / "state"
    trainer.write(folder=str(folder), what=STATE)
    yield trainer, folder
    trainer.close()


@pytest.mark.heavy
def test_a_checkpoint_holds_adapters_alone_and_goes_on_with_the_same_weights(written):
    trainer, folder = written
    trainer.files.wait()
    adapters = state_bytes(trained(trainer.begun.params))
    moments = state_bytes(trainer.begun.opt_state)
    held = state_bytes(trainer.whole)
    assert held < 1.1 * (adapters + moments) < state_bytes(trainer.begun) / 2
    metadata = (folder / "_METADATA").read_text()
    assert "adapters" in metadata and "embed_VD" not in metadata
    later = _trainer()
    assert state_bytes(later.whole) == held, "as the disk is asked for room before there is a state"
    later.read(folder=str(folder), what=STATE)
    jax.tree.map(np.testing.assert_array_equal, later.begun, trainer.begun)
    later.close()


@pytest.mark.heavy
def test_adapters_of_other_weights_are_refused_by_name(written):
    trainer, folder = written
    trainer.files.wait()
    other = _trainer(seed=trainer.config.seed + 1)
    with pytest.raises(
        ValueError, match=r"belong to other weights: \['embed_VD'\] is not as it was"
    ):
        other.read(folder=str(folder), what=STATE)
    assert other.state is None
    other.close()
