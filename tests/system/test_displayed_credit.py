"""The credit that is recorded and shown is what the gradient of the loss did with each token."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.algo import AlgoConfig, MismatchHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LOSSES, LossHypers
from ale_jax.configs.algorithms import PRESETS
from ale_jax.learn.learner import Minibatch, assemble
from ale_jax.learn.rows import to_device
from ale_jax.learn.scores import make_logp
from ale_jax.learn.step import ModelSpec, gradient_function, make_loss
from ale_jax.model.params import init_table, param_table
from ale_jax.model.policy import TokenScores
from ale_jax.monitor.trajectories import TRAJECTORIES_FILE, TrajectoryWriter, read_trajectories
from ale_jax.system.tasks import Cursor
from ale_jax.system.trajectory_samples import trajectory_samples
from tests.learn.test_assemble import EQUAL, IPA, MIXED
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE, changed
from tests.rows import each_row

pytestmark = pytest.mark.heavy

SHAPE = Shape(microbatch_rows=1, pack_length=8, chunks_per_pack=4)  # one trajectory each
TINY = changed(DENSE, num_layers=1)
MISMATCH = MismatchHypers("token", 1.1, "chunk", filter_high=1.1)
KL = LossHypers("vanilla", kl_weight=0.1, kl_estimator="k3")


def _of_presets():
    """Every loss of the presets, once, and what no preset has."""
    losses = {LossHypers(**preset()["loss"]): name for name, preset in PRESETS.items()}
    assert {loss.kind for loss in losses} == LOSSES.keys() - {"none"}
    light = dataclasses.replace(IPA.loss, negative_weight=0.1)
    return {name: loss for loss, name in losses.items()} | {"light": light, "kl": KL}


def _noisy(batch, logp_BT, rng):
    """The batch as if it were old: pi_old, mu and the other policies differ from pi by more than a
    clip allows, and every token has an advantage of its own."""
    written_BT = batch.chunk_BT >= 0

    def near(x_BT, width):
        moved_BT = x_BT + rng.normal(0.0, width, x_BT.shape)
        return np.where(written_BT, moved_BT, 0.0).astype(np.float32)

    old_BT = near(logp_BT, 0.5)
    gap_BT = np.where(batch.chunk_BT % 2 == 1, 0.2, 0.0)  # every second chunk is filtered out
    return dataclasses.replace(
        batch,
        logp_old_BT=old_BT,
        logp_mu_BT=near(old_BT - gap_BT, 0.01),
        logp_prox_BT=near(logp_BT, 0.3),
        logp_ref_BT=near(logp_BT, 0.5),
        advantage_BT=near(np.zeros_like(old_BT), 1.0),
    )


def _trained(algo):
    """A report of the gradients of one step on noisy batches, and their log-probabilities."""
    mesh = mesh_of()
    params = init_table(jax.random.key(0), param_table(TINY))
    logp_of, rng = make_logp(TINY, mesh), np.random.default_rng(0)
    made = assemble([EQUAL, MIXED], algo, SHAPE)
    logps = [logp_of(params, batch) for batch in made.batches]
    (share,) = made.minibatches
    batches = [_noisy(b, x_BT, rng) for b, x_BT in zip(made.batches, logps, strict=True)]
    loss = make_loss(algo, SHAPE.chunks_per_pack)
    gradient = jax.jit(gradient_function(ModelSpec(TINY, mesh), loss))
    with jax.set_mesh(mesh):
        updates = [
            gradient(params, params, to_device(b, mesh), share.loss_denominator, 1.0)[-1]
            for b in batches
        ]
    made = dataclasses.replace(made, batches=batches, read_updates=lambda: updates)
    return SimpleNamespace(cursor=Cursor(step=5), groups=[EQUAL, MIXED], made=made), logps


def _pushes(made, algo, logps):
    """Of each member of MIXED: the gradient of the loss by the log-probability of each of its
    tokens, times minus the loss denominator."""
    loss_fn, pushes = make_loss(algo, SHAPE.chunks_per_pack), {}
    (share,) = made.minibatches
    for batch, logp_BT in zip(made.batches, logps, strict=True):
        arrays = {name: jnp.asarray(x) for name, x in vars(batch).items() if x is not None}

        def loss_of(logp_BT, arrays=arrays):
            zeros_BT = jnp.zeros_like(logp_BT)
            scores = TokenScores(logp_BT, zeros_BT, zeros_BT.astype(bool))
            return loss_fn(scores, arrays, share.loss_denominator)[0]

        push_BT = -share.loss_denominator * np.asarray(jax.grad(loss_of)(jnp.asarray(logp_BT)))
        for member in (0, 1):
            own_BT = (batch.group_BT == 1) & (batch.member_BT == member) & (batch.chunk_BT >= 0)
            if own_BT.any():
                pushes[member] = push_BT[own_BT]
    return pushes


@pytest.mark.parametrize(("name", "loss"), _of_presets().items(), ids=list(_of_presets()))
def test_recorded_credit_is_the_gradient_of_the_loss_on_every_token(name, loss, tmp_path):
    algo = AlgoConfig("test", 1.0, "sampler", IPA.advantage, loss, MISMATCH)
    report, logps = _trained(algo)
    pushes = _pushes(report.made, algo, logps)
    with TrajectoryWriter(tmp_path) as writer:
        for sample in trajectory_samples(report, algo.mismatch):
            writer.write(sample)
    samples = read_trajectories(tmp_path / TRAJECTORIES_FILE).records
    assert [sample.reward for sample in samples] == [1.0, 0.0]  # members 0 and 1
    for member, sample in enumerate(samples):
        credit = [c for turn in sample.turns for c in turn.each.credit]
        np.testing.assert_allclose(credit, pushes[member], rtol=1e-5, atol=1e-5)
        assert [turn.masked for turn in sample.turns] == [False, True]
        means = [np.mean(turn.each.credit) for turn in sample.turns]
        np.testing.assert_allclose([turn.credit for turn in sample.turns], means, atol=1e-5)
        assert means[0] and not means[1]


A, W = 2.0, 0.5  # size of an advantage, and negative_weight
LOSS_OF = {
    "vanilla": LossHypers("vanilla", negative_weight=W),
    "ppo": LossHypers("ppo", clip_low=0.2, clip_high=0.2, negative_weight=W),
    "dual": LossHypers("ppo", clip_low=0.2, clip_high=0.2, dual_clip=3.0, negative_weight=W),
    "decoupled": LossHypers(
        "decoupled_ppo", clip_low=0.2, clip_high=0.2, ratio_cap=2.0, negative_weight=W
    ),
    "tis": LossHypers("tis", ratio_cap=1.0, negative_weight=W),
    "topr": LossHypers("topr", ratio_cap=1.0, negative_weight=W),
    "cispo": LossHypers("cispo", clip_low=0.2, clip_high=0.2, negative_weight=W),
    "kimi": LossHypers("kimi", tau=0.1, negative_weight=W),
    "sapo": LossHypers("sapo", tau=1.0, tau_negative=2.0, negative_weight=W),
}


def slope(x):
    """Of 4 sigmoid(x)."""
    return 1.0 / math.cosh(x / 2) ** 2


@each_row(
    "name, ratio, sign, expected",
    [
        ("vanilla", 3.0, 1, A),
        ("vanilla", 3.0, -1, -A * W),
        ("ppo", 1.1, 1, A * 1.1),
        ("ppo", 1.5, 1, 0.0),  # clipped
        ("ppo", 0.5, 1, A * 0.5),  # below 1, a success is not clipped
        ("ppo", 0.5, -1, 0.0),
        ("ppo", 1.5, -1, -A * W * 1.5),
        ("dual", 4.0, -1, 0.0),
        ("dual", 2.0, -1, -A * W * 2.0),
        ("decoupled", 1.1, 1, A * 1.1 * 1.25),  # pi_prox / pi_old is 1.25
        ("tis", 0.5, 1, A * 0.5),
        ("tis", 3.0, -1, -A * W),
        ("topr", 0.5, 1, A),
        ("topr", 0.5, -1, -A * W * 0.5),
        ("topr", 3.0, -1, -A * W),
        ("cispo", 3.0, 1, A * 1.2),
        ("cispo", 0.5, -1, -A * W * 0.8),
        ("kimi", 3.0, 1, A - 0.1 * math.log(3.0)),
        ("sapo", 1.0, 1, A),
        ("sapo", 1.5, 1, A * 1.5 * slope(0.5)),
        ("sapo", 1.5, -1, -A * W * 1.5 * slope(1.0)),
    ],
)
def test_credit_is_advantage_times_weight_times_ratio_or_its_bound(name, ratio, sign, expected):
    (batch,) = assemble([MIXED], IPA, Shape(2, 8, 4)).batches
    written_BT = batch.chunk_BT >= 0
    logp_BT = jnp.full(written_BT.shape, -1.0)
    log_ratio, behind = math.log(ratio), math.log(1.25) if name == "decoupled" else 0.0
    prox_BT = np.full(written_BT.shape, -1.0 - log_ratio, np.float32)
    made = dataclasses.replace(
        batch,
        logp_prox_BT=prox_BT,
        logp_old_BT=prox_BT - np.float32(behind),
        logp_mu_BT=prox_BT,
        advantage_BT=np.full(written_BT.shape, sign * A, np.float32),
    )
    algo = AlgoConfig("test", 1.0, "sampler", IPA.advantage, LOSS_OF[name], MismatchHypers())
    report = SimpleNamespace(batches=[made], minibatches=[Minibatch(slice(1), np.float32(7.0))])
    pushes = _pushes_of_group(report, algo, logp_BT)
    np.testing.assert_allclose(pushes, expected, rtol=1e-5, atol=1e-6)
    assert len(pushes) == written_BT.sum()


def _pushes_of_group(made, algo, logp_BT):
    (batch,) = made.batches
    one = dataclasses.replace(batch, group_BT=np.ones_like(batch.group_BT))
    whole = SimpleNamespace(batches=[one], minibatches=made.minibatches)
    return np.concatenate(list(_pushes(whole, algo, [logp_BT]).values()))
