"""The engine: what it says of its tokens is true, whoever else shards the batch."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import EngineStopped, RequestOptions, TokenConstraint
from ale_jax.model.params import init_params
from ale_jax.records import FORCED
from tests.engine.playing import (
    PATIENCE,
    PLAIN,
    STOP,
    assert_same,
    key,
    learner_scores,
    play,
    prompt,
    where_written,
)
from tests.engine.shapes import engine_shape
from tests.model.shapes import DENSE, MOE

SHAPE = engine_shape()


@pytest.fixture(scope="module", params=[MOE, DENSE], ids=["moe", "dense"])
def policy(request):
    return request.param, init_params(jax.random.key(1), request.param)


@pytest.fixture(params=[False, True], ids=["", "ahead"])
def engine(request, policy):
    shape, params = policy
    engine = Engine(shape, engine_shape(dispatch_ahead=request.param), STOP, params)
    yield engine
    engine.close()


@pytest.mark.heavy
def test_sampler_and_learner_agree_on_every_token(policy, engine):
    played = play(engine, 1, turns=3)
    scores, _ = learner_scores(policy, played)
    written = where_written(played)
    logp_plain = np.concatenate([r.logp_plain for _, r in played])
    assert written.sum() > 20
    np.testing.assert_allclose(logp_plain, scores[written], atol=1e-5, rtol=0)
    # Temperature 1 and nothing cut: what was sampled from is the model itself.
    np.testing.assert_allclose(
        np.concatenate([r.logp_mu for _, r in played]), logp_plain, atol=1e-6
    )


@pytest.mark.heavy
def test_others_in_the_batch_change_nothing(policy, engine):
    """Six conversations of two turns at once over four slots, against each one alone: in other
    slots, beside others in prefill, and beside one that sorts its vocabulary."""
    ways = [PLAIN, Sampling(temperature=0.7, top_k=9, top_p=0.8), *[PLAIN] * 4]
    alone = [play(engine, n, 2, ways[n]) for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda n: play(engine, n, 2, ways[n]), range(6)))
    for got, expected in zip(together, alone, strict=True):
        assert_same(got, expected)


@pytest.mark.heavy
@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_dispatch_begins_before_the_last_is_over(policy, monkeypatch, ahead):
    """And the tokens are the same. Both conversations fill dispatches of four decode steps."""
    shape, params = policy
    engine, order = Engine(shape, engine_shape(dispatch_ahead=ahead), (), params), []
    begin, finish = engine._begin, engine._finish
    monkeypatch.setattr(engine, "_begin", lambda each: order.append("begin") or begin(each))
    monkeypatch.setattr(engine, "_finish", lambda *each: order.append("finish") or finish(*each))
    with ThreadPoolExecutor(2) as pool:
        played = list(pool.map(lambda n: play(engine, n, 2, max_tokens=20), range(2)))
    engine.close()
    usual = Engine(shape, SHAPE, (), params)
    for number, turns in enumerate(played):
        assert_same(turns, play(usual, number, 2, max_tokens=20))
    usual.close()
    in_flight = np.cumsum([1 if each == "begin" else -1 for each in order])
    assert in_flight.max() == 1 + ahead and in_flight[-1] == 0
    # A reply of 20 tokens takes five dispatches, and none is begun after the last.
    assert (in_flight == 2).sum() >= 4 * 2 if ahead else order[::2] == ["begin"] * len(order[::2])


@pytest.mark.heavy
def test_conversations_that_end_while_two_dispatches_are_in_flight_leave_their_slots(policy):
    """New ones begin in them, and get the tokens that they get alone."""
    shape, params = policy
    engine = Engine(shape, engine_shape(dispatch_ahead=True, decode_steps=1), STOP, params)
    before = [engine.open() for _ in range(4)]
    replies = [engine.reply(each, prompt(50, 9), 80, PLAIN, key(50)) for each in before]
    while not engine.stats.sampled_tokens:
        time.sleep(0.001)
    for each in before:
        engine.end(each)
    with ThreadPoolExecutor(4) as pool:
        played = list(pool.map(lambda n: play(engine, n, 2), range(4)))
    for number, turns in enumerate(played):
        assert_same(turns, play(engine, number, 2))
    assert all(each.done() for each in replies)
    engine.close()


def test_mu_is_the_distribution_that_was_sampled_from(policy, engine):
    """Temperature, top_k and top_p against a slow, separate computation of the same rule."""
    sampling = Sampling(temperature=0.7, top_k=9, top_p=0.8)
    played = play(engine, 2, turns=2, sampling=sampling)
    _, all_logits = learner_scores(policy, played)
    written = np.flatnonzero(where_written(played))
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
    played = play(engine, 3, turns=1, sampling=Sampling(temperature=0.0))
    _, all_logits = learner_scores(policy, played)
    written = np.flatnonzero(where_written(played))
    np.testing.assert_array_equal(played[0][1].ids, np.asarray(all_logits)[written - 1].argmax(-1))


def test_new_weights_are_taken_between_two_dispatches(policy, engine):
    """Six requests in flight while versions 1 to 5 are published: none is lost, none is cut, and
    every token says which weights sampled it."""
    shape, _ = policy
    weights = [init_params(jax.random.key(2 + n), shape) for n in range(5)]
    with ThreadPoolExecutor(6) as pool:
        playing = [pool.submit(play, engine, n, 1, PLAIN, 60) for n in range(6)]
        for version, params in enumerate(weights, start=1):
            before = engine.stats.decode_dispatches
            while engine.stats.decode_dispatches == before and not all(
                each.done() for each in playing
            ):
                time.sleep(0.001)
            engine.publish(params, version)
    replies = [each.result()[0][1] for each in playing]
    for reply in replies:
        assert len(reply.ids) == 60 or reply.stop == "stop"
        assert len(reply.ids) == len(reply.version) == len(reply.logp_plain)
        assert (np.diff(reply.version) >= 0).all()
    assert len(set(np.concatenate([reply.version for reply in replies]))) > 2
    assert engine.stats.sampled_tokens == sum(len(reply.ids) for reply in replies)


@pytest.mark.heavy
def test_tokens_have_the_version_of_the_weights_that_their_dispatch_began_with(policy, monkeypatch):
    """Although there are others when it is over."""
    shape, params = policy
    engine = Engine(shape, SHAPE, (), params)
    finish = engine._finish

    def published_meanwhile(*each):
        engine.publish(params, engine.version + 1)
        finish(*each)

    monkeypatch.setattr(engine, "_finish", published_meanwhile)
    reply = engine.reply(engine.open(), prompt(1, 6), 10, PLAIN, key(1)).result(PATIENCE)
    engine.close()
    assert reply.version.tolist() == [0] * 4 + [1] * 4 + [2] * 2


@pytest.mark.heavy
def test_a_full_slot_says_so(engine):
    conversation = engine.open()
    reply = engine.reply(conversation, prompt(1, 90), 50, PLAIN, key(1)).result(PATIENCE)
    if reply.stop != "stop":
        assert reply.stop == "context_full"
        assert len(reply.ids) == 6  # 96 - 90
    more = engine.reply(conversation, prompt(2, 20), 50, PLAIN, key(1)).result(PATIENCE)
    assert more.stop == "context_full"
    assert len(more.ids) == 0


def test_a_stop_checker_sees_a_reply_grow_and_may_end_it(policy, engine):
    """And what it has ended goes on as if the rest had not been decoded."""
    replies = ((n, play(engine, n, 1, max_tokens=30)[0][1]) for n in range(20))
    number, whole = next((n, reply) for n, reply in replies if len(reply.ids) > 12)
    seen, conversation = [], engine.open()

    def stop_checker(ids):
        seen.append(ids.tolist())
        return 11 if len(ids) > 11 else None

    first = prompt(100 * number, 5)
    reply = engine.reply(
        conversation, first, 30, PLAIN, key(number), RequestOptions(stop_checker)
    ).result(PATIENCE)
    np.testing.assert_array_equal(reply.ids, whole.ids[:11])
    np.testing.assert_array_equal(reply.logp_mu, whole.logp_mu[:11])
    assert reply.stop == "stop"
    assert [len(each) for each in seen] == [4, 8, 12]
    assert seen[-1] == whole.ids[:12].tolist()
    after = engine.reply(conversation, prompt(101, 12), 9, PLAIN, key(1)).result(PATIENCE)
    engine.end(conversation)
    turns = [(first, reply), (prompt(101, 12), after)]
    scores, _ = learner_scores(policy, turns)
    written = np.concatenate([reply.logp_plain, after.logp_plain])
    np.testing.assert_allclose(written, scores[where_written(turns)], atol=1e-5, rtol=0)


class Mostly:
    """Every fifth token is one of ten, and the others are certain. It says so `ahead` at a time."""

    def __init__(self, ahead):
        self.ahead, self.asked = ahead, 0

    def next(self, ids, most):
        self.asked += 1
        end = len(ids) + min(most, self.ahead)
        places = range(len(ids), end)
        known = next((place + 1 for place in places if place % 5 == 0), end)
        return [self.at(place) for place in range(len(ids), known)]

    @staticmethod
    def at(place):
        tokens = range(40, 50) if place % 5 == 0 else [50 + place]
        allowed_w = np.zeros(3, np.uint32)
        for token in tokens:
            allowed_w[token // 32] |= np.uint32(1 << token % 32)
        return TokenConstraint(allowed_w.view(np.int32), mask_id=FORCED if place % 5 else 7)


def test_what_a_guide_knows_ahead_is_decoded_in_one_dispatch(engine):
    def reply(guide):
        conversation, options = engine.open(), RequestOptions(guide=guide)
        first = engine.reply(conversation, prompt(1, 9), 18, PLAIN, key(1), options).result(
            PATIENCE
        )
        after = engine.reply(conversation, prompt(2, 5), 9, PLAIN, key(2)).result(PATIENCE)
        engine.end(conversation)
        return first, after

    ahead, single = Mostly(4), Mostly(1)
    (together, then), (one_by_one, later) = reply(ahead), reply(single)
    np.testing.assert_array_equal(together.ids, one_by_one.ids)
    np.testing.assert_allclose(together.logp_mu, one_by_one.logp_mu, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(then.ids, later.ids)
    is_free = np.arange(18) % 5 == 0
    assert set(together.ids[is_free]) <= set(range(40, 50))
    assert (together.ids[~is_free] == 50 + np.flatnonzero(~is_free)).all()
    assert (together.logp_mu[is_free] < 0).all() and not together.logp_mu[~is_free].any()
    np.testing.assert_array_equal(together.mask_id, np.where(is_free, 7, FORCED))
    # The dispatches decode 0 | 1 to 4 | 5 | 6 to 9 | 10 | 11 to 14 | 15 | 16, 17.
    assert (ahead.asked, single.asked) == (8, 18)


class Speculating:
    """Tokens are of the 40s, but the one after 42, 45 or 48 is of the 60s. It guesses that what
    is allowed for a token is allowed for the next ones, too."""

    def __init__(self, guesses):
        self.guesses = guesses

    def next(self, ids, most):
        first = 60 if len(ids) and ids[-1] in (42, 45, 48) else 40
        allowed_w = np.zeros(3, np.uint32)
        for token in range(first, first + 10):
            allowed_w[token // 32] |= np.uint32(1 << token % 32)
        certain = TokenConstraint(allowed_w.view(np.int32), mask_id=first)
        guess = dataclasses.replace(certain, is_speculative=True)
        return [certain] + [guess] * min(most - 1, self.guesses)


def test_what_was_sampled_under_a_wrong_guess_is_sampled_again(engine):
    def reply(guide, number):
        options, conversation = RequestOptions(guide=guide), engine.open()
        first = engine.reply(conversation, prompt(1, 9), 30, PLAIN, key(number), options).result(
            PATIENCE
        )
        after = engine.reply(conversation, prompt(2, 5), 9, PLAIN, key(number)).result(PATIENCE)
        engine.end(conversation)
        return first, after

    dispatches, masks = [], set()
    for number in range(4):
        sampled, begun = engine.stats.sampled_tokens, engine.stats.decode_dispatches
        guessed, then = reply(Speculating(3), number)
        dispatches.append(engine.stats.decode_dispatches - begun)
        one_by_one, later = reply(Speculating(0), number)
        np.testing.assert_array_equal(guessed.ids, one_by_one.ids)
        np.testing.assert_allclose(guessed.logp_mu, one_by_one.logp_mu, atol=1e-5, rtol=0)
        np.testing.assert_array_equal(guessed.mask_id, one_by_one.mask_id)
        np.testing.assert_array_equal(guessed.mask_id, guessed.ids // 10 // 2 * 20)
        np.testing.assert_array_equal(then.ids, later.ids)
        tokens = 2 * (len(guessed.ids) + len(then.ids))
        assert engine.stats.sampled_tokens - sampled == tokens, "once each"
        np.testing.assert_allclose(then.logp_plain, later.logp_plain, atol=1e-5, rtol=0)
        masks |= set(guessed.mask_id.tolist())
    assert masks == {40, 60}
    assert max(dispatches) < 30, "one by one, its tokens alone take 30"


def test_stop_token_ends_the_reply(policy):
    shape, params = policy
    engine = Engine(shape, SHAPE, tuple(range(96)), params)
    reply = engine.reply(engine.open(), prompt(1, 6), 8, PLAIN, key(1)).result(PATIENCE)
    engine.close()
    assert reply.stop == "stop"
    assert len(reply.ids) == 1


def test_a_closed_engine_answers_with_an_error(policy):
    shape, params = policy
    engine = Engine(shape, SHAPE, STOP, params)
    engine.close()
    with pytest.raises(EngineStopped):
        engine.reply(engine.open(), prompt(1, 6), 8, PLAIN, key(1))


def test_an_engine_whose_thread_has_failed_says_so_to_whoever_asks(policy, monkeypatch):
    shape, params = policy
    engine = Engine(shape, SHAPE, STOP, params)
    engine.check()

    def out_of_memory(dispatch):
        raise MemoryError("the device has none left")

    monkeypatch.setattr(engine, "_begin", out_of_memory)
    monkeypatch.setattr(threading, "excepthook", lambda failed: None)
    conversation = engine.open()
    reply = engine.reply(conversation, prompt(1, 6), 8, PLAIN, key(1))
    with pytest.raises(EngineStopped, match="has none left"):
        reply.result(PATIENCE)
    with pytest.raises(EngineStopped, match="has none left"):
        engine.check()
    engine.end(conversation)  # as its owner does, whatever became of the reply
    engine.close()


@pytest.mark.heavy
def test_an_ended_conversation_takes_no_slot(engine):
    """A reply that was asked for too late: its slot would never be freed."""
    conversation = engine.open()
    engine.end(conversation)
    with pytest.raises(EngineStopped, match="ended"):
        engine.reply(conversation, prompt(1, 6), 8, PLAIN, key(1))
