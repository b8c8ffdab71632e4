"""The credit that the report shows of a chunk is what the gradient of the loss does with it."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.algorithm import AdvantageHypers, LossHypers
from ale_jax.learn.credit import assemble, make_loss
from ale_jax.model.policy import TokenScores
from ale_jax.monitor.trajectories import MAX_TINT, episode_views
from ale_jax.system.tasks import Cursor
from ale_jax.system.trajectory_samples import trajectory_samples
from tests.learn.test_credit import EQUAL, IPA, MIXED, SHAPE

GRPO = dataclasses.replace(
    IPA,
    gamma=1.0,
    advantage=AdvantageHypers("outcome", "group", "group"),
    loss=LossHypers("ppo", clip_low=0.2, clip_high=0.2),
)


def _pushes(made, algo):
    """Of each member, by chunk: what a descent step adds to its tokens' log-probabilities, times
    the loss denominator. At pi = pi_old no bound of the ratio acts."""
    loss_fn = make_loss(algo, SHAPE.chunks_per_pack)
    pushes = {}
    for batch in made.batches:
        arrays = {name: jnp.asarray(x) for name, x in vars(batch).items() if x is not None}

        def loss_of(logp_BT, arrays=arrays):
            scores = TokenScores(logp_BT, jnp.zeros_like(logp_BT), jnp.zeros(logp_BT.shape, bool))
            return loss_fn(scores, arrays, made.loss_denominator)[0]

        push_BT = -made.loss_denominator * np.asarray(jax.grad(loss_of)(arrays["logp_old_BT"]))
        for row, column in np.argwhere(batch.chunk_BT >= 0):
            chunks = pushes.setdefault(int(batch.member_BT[row, column]), {})
            tokens = chunks.setdefault(int(batch.chunk_BT[row, column]), [])
            tokens.append(push_BT[row, column])
    return {m: [chunks[k] for k in sorted(chunks)] for m, chunks in pushes.items()}


LIGHT_FAILURES = dataclasses.replace(IPA, loss=dataclasses.replace(IPA.loss, negative_weight=0.1))


@pytest.mark.parametrize("algo", [IPA, LIGHT_FAILURES, GRPO], ids=["ipa", "light", "grpo"])
def test_displayed_credit_is_the_push_of_the_gradient_on_the_chunks_tokens(algo):
    groups = [EQUAL, MIXED]
    made = assemble(groups, algo, SHAPE)
    report = SimpleNamespace(cursor=Cursor(step=5), params={}, groups=groups, made=made)

    def score(params, samples):
        return [
            np.concatenate([turn.logp_old for turn in s.turns[s.num_prefix_turns :]])
            for s in samples
        ]

    views = episode_views(list(trajectory_samples(report, score, algo)))
    pushes = _pushes(made, algo)
    assert [view.sample.reward for view in views] == [1.0, 0.0]  # members 0 and 1
    largest = max(abs(t.turn.advantage) for view in views for t in view.turns)
    for member, view in enumerate(views):
        assert len(view.turns) == len(pushes[member]) == 2
        for shown, tokens in zip(view.turns, pushes[member], strict=True):
            assert len(tokens) == shown.turn.tokens
            np.testing.assert_allclose(tokens, shown.turn.advantage, rtol=1e-6)
            assert shown.sign == ("positive" if np.sum(tokens) > 0 else "negative")
            np.testing.assert_allclose(
                shown.tint, MAX_TINT * abs(tokens[0]) / largest, atol=0.051
            )  # the tint is rounded to tenths
