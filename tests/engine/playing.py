"""Conversations with an engine, as the tests hold them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.config.model import FLOAT32
from ale_jax.model.compute import EXACT
from ale_jax.model.policy import hidden_states, logits, score_tokens

STOP = (3,)
PLAIN = Sampling()
LONGEST = 96
PATIENCE = 300  # seconds; the first reply waits for programs to be compiled


def key(number):
    return np.array([7, number], np.uint32)


def prompt(number, length):
    return np.random.default_rng(number).integers(4, 96, length).astype(np.int32)


def play(engine, number, turns, sampling=PLAIN, max_tokens=11, first=None):
    """A conversation of several turns; returns what each turn read and wrote."""
    conversation, played = engine.open(), []
    for turn in range(turns):
        ids = prompt(100 * number + turn, 5 + 7 * turn)
        if turn == 0 and first is not None:
            ids = first
        reply = engine.reply(conversation, ids, max_tokens, sampling, key(number)).result(PATIENCE)
        played.append((ids, reply))
    engine.end(conversation)
    return played


def assert_same(got, expected):
    """To the last bit."""
    for (_, reply), (_, wanted) in zip(got, expected, strict=True):
        np.testing.assert_array_equal(reply.ids, wanted.ids)
        np.testing.assert_array_equal(reply.logp_plain, wanted.logp_plain)
        np.testing.assert_array_equal(reply.logp_mu, wanted.logp_mu)


@partial(jax.jit, static_argnames=("shape", "compute"), compiler_options=EXACT)
def _learner(params, tokens_BT, shape, compute):
    T = tokens_BT.shape[1]
    position_BT, is_real_BT = jnp.arange(T)[None], (tokens_BT >= 0).astype(jnp.int32)
    hidden_BTD, _ = hidden_states(
        params, jnp.abs(tokens_BT), position_BT, is_real_BT, shape, compute
    )
    scores = score_tokens(params, jnp.abs(tokens_BT), hidden_BTD, position_BT, cap=shape.logit_cap)
    return scores.logp_BT[0], logits(params, hidden_BTD, shape.logit_cap)[0]


def learner_scores(policy, played, compute=FLOAT32):
    """Log-probability of every token of the conversation by the learner's forward pass, [T], and
    the logits [T,V]."""
    shape, params = policy
    ids = np.concatenate([x for read, reply in played for x in (read, reply.ids)])
    padded = np.pad(ids, (0, LONGEST - len(ids)), constant_values=-1)
    logp_T, logits_TV = _learner(params, padded[None], shape, compute)
    return np.asarray(logp_T)[: len(ids)], np.asarray(logits_TV)[: len(ids)]


def where_written(played):
    flags = [f for read, reply in played for f in ([False] * len(read), [True] * len(reply.ids))]
    return np.concatenate(flags).astype(bool)


def mean_gap(policy, played, compute=FLOAT32):
    """Mean absolute difference of the written tokens' log-probabilities, sampler to learner."""
    logp_plain = np.concatenate([reply.logp_plain for _, reply in played])
    return np.abs(
        logp_plain - learner_scores(policy, played, compute)[0][where_written(played)]
    ).mean()
