"""Training at a temperature, of what top-p leaves: the policy that is trained is the one that is
sampled, from the engine to the last update."""

import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.records import FREE
from tests.system.in_process import train

pytestmark = pytest.mark.heavy

SAMPLING = {"temperature": 0.7, "top_p": 0.8}


def test_before_its_first_update_a_token_has_the_probability_that_it_was_drawn_with():
    sections = {"train_sampling": SAMPLING, "algo": {"old_logp": "generating"}}
    # With alpha 0 no conversation has keys and values of several versions, which the learner's
    # forward pass has not.
    *_, reports = train(2, **sections, rl={"alpha": 0.0})
    batches = [batch for report in reports for batch in report.made.batches]
    assert batches
    for batch in batches:
        written_BT = batch.chunk_BT >= 0
        # pi_old is the learner's, and mu the engine's.
        np.testing.assert_allclose(batch.logp_old_BT, batch.logp_mu_BT, atol=1e-4)
        assert (batch.temperature_BT == np.where(written_BT, np.float32(0.7), 1)).all()
        assert (batch.mask_id_BT[written_BT] != FREE).all()
        assert (batch.logp_mu_BT[written_BT] < 0).any(), "there was a choice"
    for report in reports:
        assert {t.sampling for t in report.trajectories} == {Sampling(**SAMPLING)}
    updates = [sums for report in reports for sums in report.updates]
    assert updates
    for sums in updates:
        assert sums["masked_tokens"] == 0 and sums["old_rollout_logp_diff"] < 1e-2
