"""Experts that were chosen when sampling, on their way from the engine into training."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack
from ale_jax.engine.engine import Engine
from ale_jax.learn.step import forward
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states
from ale_jax.model.template_dialect import Dialect
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.worlds.api import Message
from tests.engine.playing import LONGEST, STOP, play, prompt
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import TalkingLedger, same_for_all
from tests.model.shapes import MIXED, changed

pytestmark = pytest.mark.heavy

POLICY = changed(MIXED, num_layers=3)  # the first layer is dense, two are not
PARAMS = init_params(jax.random.key(1), POLICY)
PROMPT = prompt(1, 45)  # five pages of 8 are full before the last id, which is not read


@pytest.fixture(scope="module", params=[False, True], ids=["", "ahead"])
def engine(request):
    sizes = engine_shape(prefill_tokens=(16,), dispatch_ahead=request.param)
    engine = Engine(POLICY, sizes, STOP, PARAMS, record_experts=True)
    yield engine
    engine.close()


@jax.jit
def _chosen(params, tokens_BT):
    """By the learner's forward pass over one row, [T,L,K]."""
    position_BT = jnp.arange(tokens_BT.shape[1])[None]
    _, stats = hidden_states(params, tokens_BT, position_BT, jnp.ones_like(tokens_BT), POLICY)
    return jnp.stack([layer.expert_TK for layer in stats], axis=1)


def _learners_choice(params, ids):
    return np.asarray(_chosen(params, np.pad(ids, (0, LONGEST - len(ids)))[None]))[: len(ids)]


def test_the_record_is_what_the_learner_would_choose(engine):
    """Of whole conversations, also of pages that another one had read."""
    with ThreadPoolExecutor(3) as pool:
        played = list(pool.map(lambda n: play(engine, n, 2, first=PROMPT), range(3)))
    assert engine.stats.shared_tokens == 2 * 40
    for turns in played:
        ids = np.concatenate([x for read, reply in turns for x in (read, reply.ids)])
        expert_TLK = np.concatenate([reply.expert_TLK for _, reply in turns])
        assert (len(expert_TLK), expert_TLK.dtype) == (len(ids) - 1, np.int16)
        np.testing.assert_array_equal(expert_TLK, _learners_choice(PARAMS, ids)[:-1])


def test_the_record_of_shared_replies_is_that_of_who_wrote_them():
    sizes = engine_shape(prefill_tokens=(16,), share_replies=True)
    engine = Engine(POLICY, sizes, STOP, PARAMS, record_experts=True)
    turns = play(engine, 0, 2, first=PROMPT)
    history = np.concatenate([x for read, reply in turns for x in (read, reply.ids)])
    ((_, reply),) = play(engine, 1, 1, first=history)
    assert engine.stats.shared_tokens == (len(history) - 1) // 8 * 8
    ids = np.concatenate([history, reply.ids])
    np.testing.assert_array_equal(reply.expert_TLK, _learners_choice(PARAMS, ids)[:-1])
    engine.close()


class _Letters:
    """A tokenizer whose prompts are given numbers."""

    stop_ids = STOP
    chat_template, added_tokens, longest_token, dialect = "", (), 1, Dialect()
    variables = frozenset()

    def prompt_ids(self, messages, first, tools):
        return prompt(len(messages), 20 if first else 7)

    def following_ids(self, messages, last, calls, tools):
        return prompt(len(messages), 7)

    def decode(self, ids):
        return ""

    def token_bytes(self, id):
        return None


def test_training_takes_the_recorded_experts(engine):
    """Under other weights, whose own choice would be another one."""
    ledger = TalkingLedger(engine, _Letters(), seed=0, limits=same_for_all(9))
    key = EpisodeKey("train", 0, 0, Task("trail", 1, "train"))
    ledger.open("a", key, Sampling())
    for _ in range(2):
        ledger.reply("a", [Message("user", "go on")])
    trajectory = ledger.close("a", Episode(key, Status.FINISHED, 1.0, 2, 0, 1.0, 0.5))
    expert_TLK = trajectory.expert_TLK
    ids = np.concatenate([x for t in trajectory.turns for x in (t.prompt_ids, t.action_ids)])
    assert len(expert_TLK) == trajectory.num_tokens == len(ids)
    assert (expert_TLK[:-1] >= 0).all() and (expert_TLK[-1] == -1).all()

    other = init_params(jax.random.key(2), POLICY)
    batch, _ = pack([Sample.of(trajectory, np.ones(2))], Shape(1, LONGEST, 2))
    batch.segment_BT[0, len(ids) - 1] = 0  # the last token has no record
    arrays = {name: array for name, array in vars(batch).items() if array is not None}
    _, router = jax.jit(lambda params, arrays: forward(params, arrays, POLICY))(other, arrays)

    expected_LKE = (expert_TLK[:-1, ..., None] == np.arange(POLICY.num_experts)).sum(axis=0)
    np.testing.assert_array_equal(router.chosen_LKE, expected_LKE)
    assert (expert_TLK != _learners_choice(other, ids))[:-1].mean() > 0.5
