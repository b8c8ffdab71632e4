"""A whole training step of reinforcement: its gradient and figures do not know how it was cut."""

import dataclasses

import jax
import numpy as np
import pytest

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import Sample, pack_all
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_loss, make_train_step
from ale_jax.model.sharding import make_mesh
from tests.data.make_trajectories import make_turn
from tests.learn.test_step import HYPERS
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, changed

pytestmark = pytest.mark.heavy

POLICY = changed(DENSE, num_layers=1)
IPA = LossHypers("topr", "chunk", ratio_cap=1.0, aggregation="chunks", entropy_weight=0.01)
GSPO = LossHypers("ppo", "sequence", clip_low=0.2, clip_high=0.2, aggregation="trajectory_means")
ECHO = LossHypers(
    "ppo", clip_low=0.2, clip_high=0.2, aggregation="chunk_means", observation_weight=0.1
)


def samples():
    rng = np.random.default_rng(0)
    made = []
    for number in range(18):
        turns = tuple(
            make_turn(rng.integers(4, 96, 3), rng.integers(4, 96, rng.integers(2, 6)))
            for _ in range(rng.integers(1, 4))
        )
        advantage_C = rng.normal(size=len(turns)).astype(np.float32)
        made.append(Sample(turns, advantage_C, group=number % 3, member=number))
    return made


def train(loss, mesh, shape):
    algo = AlgoConfig(
        "test",
        1.0,
        "sampler",
        AdvantageHypers("outcome", "group", "none"),
        loss,
        MismatchHypers(filter_level="chunk", filter_high=1.4),
    )
    optimizer = make_optimizer(HYPERS, POLICY)
    state = init_state(jax.random.key(0), POLICY, optimizer, mesh)
    step = make_train_step(
        ModelSpec(POLICY, mesh), optimizer, make_loss(algo, shape.chunks_per_pack)
    )
    batches = pack_all(samples(), shape)
    # Near the new policy's, so that ratios lie on both sides of 1.
    batches = [
        dataclasses.replace(b, logp_old_BT=b.logp_old_BT - np.where(b.chunk_BT >= 0, 4.4, 0))
        for b in batches
    ]
    batches = [
        dataclasses.replace(
            b,
            logp_old_BT=b.logp_old_BT.astype(np.float32),
            logp_mu_BT=(b.logp_old_BT - 0.004 * b.tokens_BT).astype(np.float32),
            read_BR=None if loss.observation_weight else b.read_BR,
        )
        for b in batches
    ]
    state, sums, _ = step(state, batches, count_loss_denominator(batches, loss.aggregation))
    # Of Adam's the first moment is the gradient, scaled.
    return jax.device_get((state.opt_state, sums)), len(batches)


@pytest.mark.parametrize("loss", [IPA, GSPO, ECHO], ids=["ipa", "gspo", "echo"])
def test_neither_rows_nor_microbatches_nor_devices_change_the_step(loss):
    (moments, sums), pieces = train(loss, mesh_of(), Shape(64, 40, 4))
    assert pieces == 1 and 0 < sums["masked_tokens"] < sums["tokens"]
    assert sums["clipped_tokens"] > 0 and sums["token_ratio_bins"].sum() == sums["tokens"]
    assert 0 < sums["token_ratios_far"] < sums["tokens"]
    assert sums["chunk_ratio_bins"].sum() == sums["chunks"]
    (again, others), pieces = train(loss, make_mesh(MeshShape(data=4, fsdp=2)), Shape(8, 40, 4))
    assert pieces > 1
    for name, value in sums.items():
        exact = name.endswith(("bins", "far", "tokens", "chunks"))
        np.testing.assert_allclose(others[name], value, rtol=0 if exact else 1e-4, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), again, moments)
