"""Pages that conversations shard, and what happens when there are too few."""

import re
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from ale_jax.config.engine import Sampling
from ale_jax.config.hardware import MeshShape
from ale_jax.engine.engine import Engine
from ale_jax.model.cache import copy_in, copy_out
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.params import init_params
from tests.engine.playing import PATIENCE, PLAIN, STOP, assert_same, key, play, prompt
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE

PARAMS = init_params(jax.random.key(1), MOE)
PROMPT = prompt(1, 45)  # five pages of 8 are full before the last id, which is not read


def _engine(**changes):
    return Engine(MOE, engine_shape(**changes), STOP, PARAMS)


@pytest.fixture
def engine():
    engine = _engine()
    yield engine
    engine.close()


def test_a_group_reads_its_prompt_once(engine):
    """Four members at once, against each one alone in an engine that remembers nothing."""
    with ThreadPoolExecutor(4) as pool:
        group = list(pool.map(lambda n: play(engine, n, 2, first=PROMPT), range(4)))
    assert engine.stats.shared_tokens == 3 * 40
    for number, member in enumerate(group):
        fresh = _engine()
        assert_same(member, play(fresh, number, 2, first=PROMPT))
        assert fresh.stats.shared_tokens == 0
        fresh.close()


def test_a_prompt_that_goes_on_otherwise_shares_what_is_the_same(engine):
    other = np.concatenate([PROMPT[:20], prompt(2, 30)])
    play(engine, 0, 1, first=PROMPT)
    got = play(engine, 1, 1, first=other)
    assert engine.stats.shared_tokens == 16
    fresh = _engine()
    assert_same(got, play(fresh, 1, 1, first=other))
    fresh.close()


@pytest.mark.parametrize("across", [False, True])
def test_pages_of_other_weights_are_shared_only_if_told_so(across):
    engine = _engine(share_across_versions=across)
    play(engine, 0, 1, first=PROMPT)
    engine.publish(PARAMS, 1)
    play(engine, 1, 1, first=PROMPT)
    assert engine.stats.shared_tokens == (40 if across else 0)
    play(engine, 2, 1, first=PROMPT)
    assert engine.stats.shared_tokens == (80 if across else 40)
    engine.close()


def _history(played):
    return np.concatenate([ids for read, reply in played for ids in (read, reply.ids)])


def _go_on(engine, ids, number):
    """The reply of a new conversation that begins with `ids`, and how many of them were shared."""
    before, conversation = engine.stats.shared_tokens, engine.open()
    reply = engine.reply(conversation, ids, 11, PLAIN, key(number)).result(PATIENCE)
    engine.end(conversation)
    return reply, engine.stats.shared_tokens - before


@pytest.mark.parametrize("ahead", [False, True])
def test_a_conversation_that_lost_its_place_is_read_from_its_last_full_page(ahead):
    engine = _engine(share_replies=True, dispatch_ahead=ahead)
    history = _history(play(engine, 0, 3))
    fresh, told = _engine(), np.concatenate([history, prompt(9, 5)])
    for cut in (len(told), len(history) - 12, 30):  # also those that go on otherwise
        ids = np.append(told[:cut], prompt(10, 1))
        in_cache = min(cut, len(history) - 1)  # what was written last was never read
        reply, shared = _go_on(engine, ids, cut)
        assert shared == in_cache // 8 * 8 > 0
        expected, _ = _go_on(fresh, ids, cut)
        np.testing.assert_array_equal(reply.ids, expected.ids)
        np.testing.assert_allclose(reply.logp_plain, expected.logp_plain, atol=1e-5)
    for each in (engine, fresh):
        each.close()


def test_replies_are_not_shared_unless_told_so(engine):
    history = _history(play(engine, 0, 2, first=PROMPT))
    assert _go_on(engine, history, 1)[1] == 40, "the pages of the first prompt"


def test_what_several_weights_have_read_and_written_is_not_shared():
    engine = _engine(share_replies=True)
    conversation, first, more = engine.open(), prompt(1, 20), prompt(2, 20)
    one = engine.reply(conversation, first, 11, PLAIN, key(0)).result(PATIENCE)
    engine.publish(PARAMS, 1)
    two = engine.reply(conversation, more, 11, PLAIN, key(0)).result(PATIENCE)
    engine.end(conversation)
    history = np.concatenate([first, one.ids, more, two.ids])
    assert _go_on(engine, history, 1)[1] == 0
    # What this one has read and written belongs to one version, and is shared.
    assert _go_on(engine, history, 2)[1] == (len(history) - 1) // 8 * 8
    engine.publish(PARAMS, 0)
    by_first = len(first) + len(one.ids) - 1
    assert _go_on(engine, history, 3)[1] == by_first // 8 * 8
    engine.close()


def test_with_pages_for_two_the_others_wait_their_turn():
    engine = _engine(pages=24)
    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(lambda n: play(engine, n, 3), range(8)))
    assert all(len(turns) == 3 and len(turns[0][1].ids) for turns in played)
    assert engine.stats.sampled_tokens == sum(len(r.ids) for turns in played for _, r in turns)
    engine.close()


def test_who_is_ended_while_it_is_read_leaves_nothing_half_read(engine):
    """Its pages go to others, who do not take them for read."""
    for number in range(6):
        conversation = engine.open()
        engine.reply(conversation, PROMPT, 5, PLAIN, key(number))
        engine.end(conversation)
    got = play(engine, 7, 2, first=PROMPT)
    fresh = _engine()
    assert_same(got, play(fresh, 7, 2, first=PROMPT))
    fresh.close()


def test_a_long_prompt_does_not_stop_those_who_write():
    """With a budget of one chunk per dispatch its five chunks take five dispatches, and in each of
    them the other one goes on decoding."""
    engine = _engine(prefill_budget=16, decode_steps=1)
    decoding = engine.open()
    writer = engine.reply(decoding, prompt(3, 2), 90, PLAIN, key(3))
    while not engine.stats.sampled_tokens:
        pass
    before = engine.stats.sampled_tokens
    engine.reply(engine.open(), prompt(4, 81), 1, PLAIN, key(4)).result(PATIENCE)
    assert writer.done() or engine.stats.sampled_tokens - before >= 5
    engine.close()


@pytest.fixture
def compiled(caplog):
    """Lists the names of what any thread compiles, as jax's log tells them."""
    before = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", True)
    yield lambda: re.findall(r"Compiling (?:jit\()?(\w+)\)? with", caplog.text)
    jax.config.update("jax_log_compiles", before)


@pytest.mark.heavy
def test_each_program_is_compiled_once(compiled):
    """On a mesh of one device, as a run has it. Pages go to the host and back, too."""
    one = np.array(jax.devices()[:1]).reshape((1,) * 5)
    mesh = Mesh(one, tuple(vars(MeshShape())), axis_types=(AxisType.Auto,) * 5)
    engine = Engine(MOE, engine_shape(dispatch_ahead=True, pages=14), STOP, PARAMS, mesh=mesh)
    for program in (prefill_and_decode, copy_out, copy_in):
        program.clear_cache()
    play(engine, 0, 1)
    cut = Sampling(temperature=0.5, top_k=3, top_p=0.9)
    ways = [PLAIN, cut, Sampling(temperature=0.0)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: play(engine, n, 3, ways[n % 3], 3 + 5 * n), range(6)))
    engine.publish(init_params(jax.random.key(2), MOE), 1)
    play(engine, 9, 2, first=PROMPT)
    engine.close()
    assert engine.stats.preemptions > 2
    names = compiled()
    assert names.count("prefill_and_decode") == 1
    # For 1, 2, 4, 8 and all 12 pages of a conversation of full length, at most.
    assert 1 <= names.count("copy_out") <= 5 and 1 <= names.count("copy_in") <= 5
