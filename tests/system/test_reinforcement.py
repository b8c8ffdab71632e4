"""Reinforcement from sampling to publish in one process: what it computes, and that it learns."""

import jax
import numpy as np
import pytest

from ale_jax.algo.ratio import log_ratio
from ale_jax.system.step_metrics import step_metrics
from tests.system.in_process import FromTheStart, mean_reward, train

pytestmark = pytest.mark.heavy

# Each step trains on what the weights of the step before sampled. So a change of the sampler, the
# credit, the loss or the optimizer shows here. Update the figures only for a change that is meant
# to alter them, and say so in its commit.
#
# Mean reward, loss and gradient norm of each step.
GOLDEN_STEPS = (
    (0.078125, 0.2661922, 0.2805331),
    (0.0625, 0.2324921, 0.3187007),
    (0.15625, 0.5143899, 0.5327382),
)
# Euclidean norm of what three steps changed, for each array of weights.
GOLDEN_MOVES = {
    "embed_VD": 0.110482,
    "final_norm_D": 0.00552587,
    "layers/0/attn_norm_D": 0.00484871,
    "layers/0/down_FD": 0.0197948,
    "layers/0/ffn_norm_D": 0.00544991,
    "layers/0/gate_DF": 0.0246794,
    "layers/0/k_DGH": 0.0126725,
    "layers/0/k_norm_H": 0.00333398,
    "layers/0/o_NHD": 0.0184334,
    "layers/0/q_DNH": 0.018794,
    "layers/0/q_norm_H": 0.00348454,
    "layers/0/up_DF": 0.0251521,
    "layers/0/v_DGH": 0.0131496,
    "layers/1/attn_norm_D": 0.0050008,
    "layers/1/down_EFD": 0.0395593,
    "layers/1/ffn_norm_D": 0.00535788,
    "layers/1/gate_EDF": 0.0341558,
    "layers/1/k_DGH": 0.0129483,
    "layers/1/k_norm_H": 0.00299832,
    "layers/1/o_NHD": 0.0199306,
    "layers/1/q_DNH": 0.0186045,
    "layers/1/q_norm_H": 0.00346948,
    "layers/1/router_DE": 0.0115431,
    "layers/1/up_EDF": 0.035257,
    "layers/1/v_DGH": 0.0136601,
}
# Three steps with other vector units or another number of threads differ by 2e-4 at most, because
# they add in another order.
TOLERANCE = 1e-3


def _moves(before, after):
    norms = jax.tree.map(lambda a, b: np.linalg.norm(np.asarray(b - a, np.float64)), before, after)
    paths, _ = jax.tree_util.tree_flatten_with_path(norms)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): n for path, n in paths}


def _ipa_credit(batch, update):
    """The advantage of successes, and 0.1 min(r, 1) times that of failures, with r the geometric
    mean over a chunk."""
    places = batch.chunk_BT, batch.segment_BT
    ratio_BT = np.exp(log_ratio(update.logp_BT, batch.logp_old_BT, *places, "chunk", 32))
    factor_BT = np.where(batch.advantage_BT < 0, 0.1 * np.minimum(ratio_BT, 1.0), 1.0)
    return factor_BT * batch.advantage_BT


def test_three_steps_of_ipa_compute_what_they_did_before():
    before, state, reports = train(3, rl={"fill_queue": True}, learn={"balance_weight": 0.0})
    figures = [step_metrics(report) for report in reports]
    steps = [(f["reward"], f["loss"], f["grad_norm"]) for f in figures]
    np.testing.assert_allclose(steps, GOLDEN_STEPS, rtol=TOLERANCE)
    for made in (report.made for report in reports):
        for batch, update in zip(made.batches, made.read_updates(), strict=True):
            np.testing.assert_allclose(update.credit_BT, _ipa_credit(batch, update), atol=1e-6)
    moves = _moves(before, state.params)
    assert moves.keys() == GOLDEN_MOVES.keys()
    np.testing.assert_allclose(list(moves.values()), list(GOLDEN_MOVES.values()), rtol=TOLERANCE)


def test_reinforcement_learns():
    rates = {"muon_learning_rate": 0.02, "learning_rate": 5e-3}
    *_, reports = train(30, rl_optimizer=rates)
    rewards = [mean_reward(report) for report in reports]
    assert np.mean(rewards[:5]) < 0.25, rewards  # random weights seldom begin with a capital
    assert np.mean(rewards[-5:]) > 0.75, rewards


def test_the_rate_begins_to_fall_when_enough_episodes_succeed_and_is_asked_no_more(monkeypatch):
    shares, asked = [0.2, 0.6, 0.9], []

    def success_from_start(resampler):
        asked.append(shares[len(asked)])
        return asked[-1]

    monkeypatch.setattr(FromTheStart, "success_from_start", success_from_start, raising=False)
    _, state, _ = train(4, rl_optimizer={"decay_success": 0.5, "decay_ratio": 1.0})
    assert asked == [0.2, 0.6]
    assert int(state.opt_state[-1].begins) == 2  # updates were made before
    assert int(state.opt_state[-1].count) == 4


def test_a_cpu_has_a_speed_and_no_utilisation():
    *_, reports = train(1, learn={"epochs": 2})
    (report,) = reports
    found = report.made.read_speed()
    assert found.keys() == {"time/update_s", "train_tokens_per_second"}
    tokens = found["train_tokens_per_second"] * found["time/update_s"]
    assert tokens == pytest.approx(2 * sum((b.segment_BT > 0).sum() for b in report.made.batches))
