"""Where drafts end: at stop tokens, budgets, and new weights. The policy says a fixed cycle of
tokens, so that it is known which drafts are right."""

import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from tests.engine.playing import PATIENCE, STOP, key
from tests.engine.shapes import engine_shape
from tests.model.shapes import DENSE

pytestmark = pytest.mark.heavy

GREEDY = Sampling(temperature=0.0)
K, STEPS = 4, 4
LONGEST = 96
TOKENS = np.arange(10, 96)


def _cycling(step):
    """Weights with which each token is followed by the one `step` later in TOKENS, but 20 by the
    stop token, and that by 30."""
    params = init_params(jax.random.key(1), DENSE)
    layers = [
        each | {name: jnp.zeros_like(each[name]) for name in ("o_NHD", "down_FD")}
        for each in params["layers"]
    ]
    next_V = np.arange(96)
    next_V[TOKENS] = np.roll(TOKENS, -step)
    next_V[20], next_V[STOP[0]] = STOP[0], 30
    embed_VD = np.asarray(params["embed_VD"])
    head_DV = np.zeros(params["head_DV"].shape, np.float32)
    for token in (*TOKENS, STOP[0]):
        head_DV[:, next_V[token]] += embed_VD[token] / np.linalg.norm(embed_VD[token])
    return params | {"layers": layers, "head_DV": jnp.asarray(head_DV)}


@pytest.fixture(scope="module")
def engine():
    # For a single conversation drafts pay as soon as one was right. One that is right in full
    # crosses a page of four tokens.
    shape = engine_shape(max_sequences=1, speculative_tokens=K, decode_steps=STEPS, page_tokens=4)
    with contextlib.closing(Engine(DENSE, shape, STOP, _cycling(1))) as engine:
        yield engine


def _reply(engine, ids, most, conversation=None):
    conversation = engine.open() if conversation is None else conversation
    ids = np.asarray(ids, np.int32)
    return engine.reply(conversation, ids, most, GREEDY, key(1)).result(PATIENCE)


def _counted(engine, ids, most):
    """The reply, and the passes, drafted tokens and accepted tokens that it took."""
    names = ("decode_passes", "drafted_tokens", "accepted_tokens")
    before = [getattr(engine.stats, name) for name in names]
    reply = _reply(engine, ids, most)
    after = [getattr(engine.stats, name) for name in names]
    return reply, [now - then for now, then in zip(after, before, strict=True)]


def test_tokens_are_counted_by_the_passes_that_drew_them(engine):
    """Sixteen tokens that were said before: a step, and three passes of five."""
    said = list(range(40, 60))
    reply, counts = _counted(engine, [*said, 40, 41], 16)
    assert reply.ids.tolist() == list(range(42, 58)) and reply.stop == "length"
    assert counts == [4, 12, 12]


def test_a_draft_that_is_wrong_costs_its_tokens_only(engine):
    reply, counts = _counted(engine, [40, 41, 42, 50, 51, 52, 53, 40, 41], 4)
    assert reply.ids.tolist() == [42, 43, 44, 45] and reply.stop == "length"
    assert counts == [4, 2, 0], "50 and 51 after 42, which was right; 43 was not said before"


@pytest.mark.parametrize("most", range(1, 12))
def test_no_token_is_drawn_behind_the_budget(engine, most):
    reply, (passes, drafted, accepted) = _counted(engine, [*range(40, 60), 40, 41], most)
    assert reply.ids.tolist() == list(range(42, 42 + most)) and reply.stop == "length"
    assert drafted == accepted == most - passes


def test_no_token_is_drawn_behind_the_longest_context(engine):
    prompt = [*range(40, 60), *range(12, 20), *range(60, 90), *range(40, 60), 61, 62, 40, 41]
    reply = _reply(engine, prompt, 60)
    assert reply.stop == "context_full" and len(prompt) + len(reply.ids) == LONGEST
    assert reply.ids.tolist() == list(range(42, 42 + len(reply.ids)))


def test_a_stop_token_within_a_draft_ends_the_reply(engine):
    """What the draft had behind it is forgotten."""
    conversation = engine.open()
    before = engine.stats.accepted_tokens
    ids = [17, 18, 19, 20, STOP[0], 30, 31, 60, 17, 18]
    reply = _reply(engine, ids, 20, conversation)
    assert reply.ids.tolist() == [19, 20, STOP[0]] and reply.stop == "stop"
    assert engine.stats.accepted_tokens - before == 2
    then = _reply(engine, [70, 71, 72], 8, conversation)
    assert then.ids.tolist() == list(range(73, 81))


def test_new_weights_reject_what_the_old_ones_said(engine):
    """Each token is what the weights that drew it say after the one before."""
    weights, before = {n: _cycling(1 + n % 2) for n in range(2)}, engine.stats.drafted_tokens
    replies = []
    for number in range(40):
        conversation = engine.open()
        ids = np.array([*range(40, 60), 40 + number % 9], np.int32)
        asked = engine.reply(conversation, ids, 70, GREEDY, key(1))
        while not asked.done():
            version = engine.version + 1
            engine.publish(weights[version % 2], version)
            time.sleep(0.002)
        replies.append((ids[-1], asked.result()))
        engine.end(conversation)
    engine.publish(weights[0], engine.version + engine.version % 2)
    for last, reply in replies:
        tokens = np.array([last, *reply.ids])
        step_T = 1 + reply.version % 2
        expected_T = 10 + (tokens[:-1] - 10 + step_T) % len(TOKENS)
        expected_T[tokens[:-1] == 20] = STOP[0]
        np.testing.assert_array_equal(reply.ids, expected_T)
    assert any(len(set(reply.version % 2)) == 2 for _, reply in replies)
    assert engine.stats.drafted_tokens > before
