"""Training of a policy whose replies are held to a schema, from sampling to publish."""

import numpy as np
import pytest

from ale_jax.records import FREE
from tests.system.choices import CHOICES, LENGTHS
from tests.system.in_process import mean_reward, train

pytestmark = pytest.mark.heavy


def test_a_policy_learns_what_to_choose_among_the_replies_that_a_schema_allows():
    sections = {
        "rl_optimizer": {"muon_learning_rate": 0.02, "learning_rate": 5e-3},
        "rollout": LENGTHS,
        "rl": {"fill_queue": True},
        "algo": {"old_logp": "generating"},  # pi_old is then the learner's, and mu the engine's
    }
    *_, reports = train(10, game=CHOICES, **sections)
    rewards = [mean_reward(report) for report in reports]
    assert rewards[0] < 0.8 and np.mean(rewards[-3:]) > 0.95, rewards
    for batch in (batch for report in reports for batch in report.made.batches):
        assert (batch.mask_id_BT[batch.chunk_BT >= 0] != FREE).all()
        np.testing.assert_allclose(batch.logp_old_BT, batch.logp_mu_BT, atol=1e-4)
    (sums,) = reports[0].updates
    assert sums["entropy"] / sums["tokens"] < 2.0, "log 320 if they were free"
