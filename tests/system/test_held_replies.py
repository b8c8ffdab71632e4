"""Training of a policy whose replies are held to a schema, from sampling to publish."""

import numpy as np
import pytest

from ale_jax.agent.api import Reply
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from tests.system import in_process
from tests.system.in_process import Capitals, mean_reward, train

SCHEMA = {"enum": ["No", "yes", "Ha", "well"]}
OLD = {"algo": {"old_logp": "generating"}}  # pi_old is then the learner's, and mu the engine's


class Choices(Capitals):
    """A reply is one of four words, as JSON; those with a capital are rewarded."""

    def step(self, action):
        return super().step(action.removeprefix('"'))


class HeldConversation:
    """An agent that asks for a reply of the schema."""

    def __init__(self, ledger, name):
        self._episode, self._told = ledger.episodes.find(name), []

    def reply(self, new_messages):
        self._told += [ChatMessage(each.role, each.content) for each in new_messages]
        request = ChatRequest("", tuple(self._told), schema=SCHEMA)
        (pending,) = self._episode.ask(request)
        said = self._episode.answer(pending, request).message
        self._told.append(said)
        return Reply(said.content, "stop")


@pytest.fixture(autouse=True)
def held(monkeypatch):
    monkeypatch.setattr(in_process, "Capitals", Choices)
    monkeypatch.setattr(in_process, "_Conversation", HeldConversation)


def test_a_policy_learns_what_to_choose_among_the_replies_that_a_schema_allows():
    rates = {"muon_learning_rate": 0.02, "learning_rate": 5e-3}
    lengths = {"max_reply_tokens": 10}
    _, _, reports = train(10, rl_optimizer=rates, rollout=lengths, rl={"fill_queue": True}, **OLD)
    rewards = [mean_reward(report) for report in reports]
    assert rewards[0] < 0.8 and np.mean(rewards[-3:]) > 0.95, rewards
    batches = [batch for report in reports for batch in report.made.batches]
    held = [batch.mask_id_BT[batch.chunk_BT >= 0] for batch in batches]
    assert all((mask_id != -1).all() for mask_id in held)
    for batch in batches:
        np.testing.assert_allclose(batch.logp_old_BT, batch.logp_mu_BT, atol=1e-4)
    entropy = reports[0].sums["entropy"] / reports[0].sums["tokens"]
    assert entropy < 2.0, "log 320 without masks"
