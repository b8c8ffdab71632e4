"""The engine: what it says of its tokens is true, whoever else shares the batch."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits, score_tokens
from ale_jax.model.sampler import Sampling
from ale_jax.rollout.engine import Engine, EngineStopped
from ale_jax.rollout.engine_shape import EngineShape
from tests.model.shapes import DENSE, MOE

STOP = (3,)
SHAPE = EngineShape(
    slots=4,
    slot_tokens=96,
    decode_steps=4,
    prefill_tokens=(8, 16),
    prefill_rows=1,
    prefill_budget=32,
    page_tokens=8,
    pages=48,
    share_across_versions=False,
    int8_cache=False,
)
PLAIN = Sampling()


@pytest.fixture(scope="module", params=[MOE, DENSE], ids=["moe", "dense"])
def policy(request):
    return request.param, init_params(jax.random.key(1), request.param)


@pytest.fixture
def engine(policy):
    shape, params = policy
    engine = Engine(shape, SHAPE, STOP, params)
    yield engine
    engine.close()


def _key(number):
    return np.array([7, number], np.uint32)


def _prompt(number, length):
    return np.random.default_rng(number).integers(4, 96, length).astype(np.int32)


def _play(engine, number, turns, sampling=PLAIN, max_tokens=11):
    """A conversation of several turns; returns what each turn read and wrote."""
    conversation, played = engine.open(), []
    for turn in range(turns):
        prompt = _prompt(100 * number + turn, 5 + 7 * turn)
        reply = engine.reply(conversation, prompt, max_tokens, sampling, _key(number)).result(60)
        played.append((prompt, reply))
    engine.end(conversation)
    return played


def _learner_scores(policy, played):
    """Log-probability of every token of the conversation by the learner's forward pass."""
    shape, params = policy
    ids = np.concatenate([x for prompt, reply in played for x in (prompt, reply.ids)])
    tokens_BT, position_BT = ids[None], np.arange(len(ids))[None]
    hidden_BTD, _ = hidden_states(params, tokens_BT, position_BT, jnp.ones_like(tokens_BT), shape)
    all_logits = logits(params, hidden_BTD)[0]
    return np.asarray(
        score_tokens(params, tokens_BT, hidden_BTD, position_BT).logp_BT[0]
    ), all_logits


def _where_written(played):
    flags = [f for p, r in played for f in ([False] * len(p), [True] * len(r.ids))]
    return np.concatenate(flags).astype(bool)


def test_sampler_and_learner_agree_on_every_token(policy, engine):
    played = _play(engine, 1, turns=3)
    scores, _ = _learner_scores(policy, played)
    written = _where_written(played)
    logp_old = np.concatenate([r.logp_old for _, r in played])
    assert written.sum() > 20
    np.testing.assert_allclose(logp_old, scores[written], atol=1e-5, rtol=0)
    # Temperature 1 and nothing cut: what was sampled from is the model itself.
    np.testing.assert_allclose(np.concatenate([r.logp_mu for _, r in played]), logp_old, atol=1e-6)


def test_company_in_the_batch_changes_nothing(policy, engine):
    """Six conversations of two turns at once over four slots, against each one alone."""
    alone = [_play(engine, n, turns=2) for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda n: _play(engine, n, turns=2), range(6)))
    for expected_turns, turns in zip(alone, together, strict=True):
        for (_, expected), (_, got) in zip(expected_turns, turns, strict=True):
            np.testing.assert_array_equal(got.ids, expected.ids)
            np.testing.assert_array_equal(got.logp_old, expected.logp_old)


def test_mu_is_the_distribution_that_was_sampled_from(policy, engine):
    """Temperature, top_k and top_p against a slow, separate computation of the same rule."""
    sampling = Sampling(temperature=0.7, top_k=9, top_p=0.8)
    played = _play(engine, 2, turns=2, sampling=sampling)
    _, all_logits = _learner_scores(policy, played)
    written = np.flatnonzero(_where_written(played))
    ids = np.concatenate([r.ids for _, r in played])
    logp_mu = np.concatenate([r.logp_mu for _, r in played])
    for at, token, logp in zip(written, ids, logp_mu, strict=True):
        scaled = np.asarray(all_logits[at - 1], np.float64) / 0.7
        order = np.argsort(-scaled)[:9]
        prob = np.exp(scaled[order] - scaled[order].max())
        prob /= prob.sum()
        keep = int(np.searchsorted(np.cumsum(prob), 0.8)) + 1
        assert token in order[:keep]
        expected = np.log(prob[list(order).index(token)] / prob[:keep].sum())
        assert abs(logp - expected) < 1e-4


def test_greedy_takes_the_most_probable(policy, engine):
    played = _play(engine, 3, turns=1, sampling=Sampling(temperature=0.0))
    _, all_logits = _learner_scores(policy, played)
    written = np.flatnonzero(_where_written(played))
    np.testing.assert_array_equal(played[0][1].ids, np.asarray(all_logits)[written - 1].argmax(-1))


def test_new_weights_are_taken_in_the_middle_and_stamped(policy, engine):
    shape, _ = policy
    conversation = engine.open()
    first = engine.reply(conversation, _prompt(1, 6), 8, PLAIN, _key(1)).result(60)
    engine.publish(init_params(jax.random.key(2), shape), 5)
    second = engine.reply(conversation, _prompt(2, 6), 8, PLAIN, _key(1)).result(60)
    assert set(first.version) == {0}
    assert set(second.version) == {5}


def test_a_full_slot_says_so(engine):
    conversation = engine.open()
    reply = engine.reply(conversation, _prompt(1, 90), 50, PLAIN, _key(1)).result(60)
    if reply.stop != "stop":
        assert reply.stop == "context_full"
        assert len(reply.ids) == 6  # 96 - 90
    more = engine.reply(conversation, _prompt(2, 20), 50, PLAIN, _key(1)).result(60)
    assert more.stop == "context_full"
    assert len(more.ids) == 0


def test_stop_token_ends_the_reply(policy):
    shape, params = policy
    engine = Engine(shape, SHAPE, tuple(range(96)), params)
    reply = engine.reply(engine.open(), _prompt(1, 6), 8, PLAIN, _key(1)).result(60)
    engine.close()
    assert reply.stop == "stop"
    assert len(reply.ids) == 1


def test_a_closed_engine_answers_with_an_error(policy):
    shape, params = policy
    engine = Engine(shape, SHAPE, STOP, params)
    engine.close()
    with pytest.raises(EngineStopped):
        engine.reply(engine.open(), _prompt(1, 6), 8, PLAIN, _key(1))


def test_an_ended_conversation_takes_no_slot(engine):
    """A reply that was asked for too late: its slot would never be freed."""
    conversation = engine.open()
    engine.end(conversation)
    with pytest.raises(EngineStopped, match="ended"):
        engine.reply(conversation, _prompt(1, 6), 8, PLAIN, _key(1))
