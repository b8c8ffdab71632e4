"""The engine samples from a policy with states what the learner computes: beside others, swapped
out, cut by stop checkers, under guides, on several devices."""

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.engine.engine import Engine
from ale_jax.engine.page_swaps import PageSwaps
from ale_jax.engine.request import RequestOptions, TokenConstraint
from ale_jax.model.delta_layer import DeltaState
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.params import init_params
from ale_jax.model.sharding import param_shardings
from ale_jax.model.short_conv import ConvState
from tests.engine.playing import (
    PATIENCE,
    PLAIN,
    STOP,
    assert_same,
    key,
    learner_scores,
    mean_gap,
    play,
    prompt,
    where_written,
)
from tests.engine.shapes import engine_shape
from tests.model.meshes import mesh_of
from tests.model.shapes import RECURRENT

pytestmark = pytest.mark.heavy


def _remembering(params):
    """With slow decays, so that what is long ago matters."""
    first = params["layers"][0] | {"delta_decay_N": jnp.full((4,), -4.0)}
    return params | {"layers": [first, *params["layers"][1:]]}


PARAMS = _remembering(init_params(jax.random.key(1), RECURRENT))
POLICY = RECURRENT, PARAMS
CLOSE = 2e-5


def _engine(params=PARAMS, mesh=None, **sizes):
    return Engine(RECURRENT, engine_shape(**sizes), STOP, params, mesh=mesh, record_experts=True)


def _assert_learners(played, policy=POLICY):
    """Of each written token, as a mean would hide one that saw a wrong state."""
    logp_T, _ = learner_scores(policy, played)
    written = np.concatenate([reply.logp_plain for _, reply in played])
    np.testing.assert_allclose(written, logp_T[where_written(played)], atol=CLOSE)


def _play_all(engine, turns=3):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: play(engine, n, turns), range(8)))


@pytest.fixture(scope="module")
def roomy():
    """What each conversation gets from an engine in which nobody is preempted."""
    with contextlib.closing(_engine(max_sequences=8)) as engine:
        played = _play_all(engine)
        assert engine.stats.preemptions == 0
    return played


def test_replies_are_what_the_learner_computes(roomy):
    for played in roomy:
        _assert_learners(played)
        assert all(len(r.expert_TLK) for _, r in played)


def test_a_common_beginning_is_computed_for_each():
    with contextlib.closing(_engine()) as engine:
        for number in (1, 2):
            _assert_learners(play(engine, number, 2, first=prompt(1, 30)))
        assert engine.stats.shared_tokens == 0


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_whoever_is_swapped_out_goes_on_as_with_room_for_all(roomy, ahead):
    """To the last bit, in two slots and the pages of little more than one conversation."""
    sizes = {"max_sequences": 2, "pages": 14, "dispatch_ahead": ahead}
    with contextlib.closing(_engine(**sizes)) as engine:
        together = _play_all(engine)
        assert engine.stats.preemptions > 4
    for got, expected in zip(together, roomy, strict=True):
        assert_same(got, expected)


def test_chunks_of_one_context_follow_each_other_where_rows_are_computed_together():
    """A context of five chunks, of which two fit into a batch, beside another of three."""
    with contextlib.closing(_engine(prefill_rows=2, prefill_tokens=(8,))) as engine:
        with ThreadPoolExecutor(2) as pool:
            firsts = prompt(1, 40), prompt(2, 21)
            asked = pool.map(lambda n: play(engine, n, 2, first=firsts[n]), range(2))
            for played in asked:
                _assert_learners(played)


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 6, 9])
def test_a_conversation_goes_on_behind_the_end_that_a_stop_checker_finds(ahead, after):
    """Wherever that is within the four steps of a dispatch; and twice, as the second prefill begins
    anew, too."""
    options = RequestOptions(stop_checker=lambda ids: after if len(ids) >= after else None)
    with contextlib.closing(_engine(dispatch_ahead=ahead)) as engine:
        conversation, played = engine.open(), []
        for turn in range(3):
            ids = prompt(40 + turn, 5 + turn)
            asked = engine.reply(conversation, ids, 12, PLAIN, key(4), options)
            played.append((ids, asked.result(PATIENCE)))
    assert all(len(reply.ids) <= after for _, reply in played)
    assert sum(len(reply.ids) == after for _, reply in played) > 1
    _assert_learners(played)
    # Every token but the last has told its experts, each once.
    told = sum(len(reply.expert_TLK) for _, reply in played)
    assert told == sum(len(ids) + len(reply.ids) for ids, reply in played) - 1


class Guessing:
    """Allows even tokens, and odd ones after one that 5 divides, which it guesses not to come."""

    def next(self, ids, most):
        odd = len(ids) > 0 and ids[-1] % 5 == 0
        allowed = np.array([0xAAAAAAAA if odd else 0x55555555] * 3, np.uint32).view(np.int32)
        certain = TokenConstraint(allowed)
        return [certain] + [dataclasses.replace(certain, is_speculative=True)] * (most - 1)


def test_what_follows_a_guided_reply_knows_its_tokens():
    with contextlib.closing(_engine()) as engine:
        conversation, played = engine.open(), []
        for turn, options in enumerate((RequestOptions(guide=Guessing()), RequestOptions())):
            ids = prompt(60 + turn, 5)
            asked = engine.reply(conversation, ids, 14, PLAIN, key(6), options)
            played.append((ids, asked.result(PATIENCE)))
    guided, free = (reply for _, reply in played)
    assert (guided.ids % 5 == 0).any() and (guided.ids % 2 == 1).any()
    logp_T, _ = learner_scores(POLICY, played)
    np.testing.assert_allclose(free.logp_plain, logp_T[-len(free.ids) :], atol=CLOSE)


def test_new_weights_hold_for_conversations_that_begin_then():
    other = _remembering(init_params(jax.random.key(2), RECURRENT))
    with contextlib.closing(_engine(max_sequences=2, pages=14)) as engine:
        play(engine, 1, 2)
        engine.publish(other, 1)
        for played in _play_all(engine, turns=2):
            _assert_learners(played, (RECURRENT, other))


def test_pages_of_eight_bits_leave_states_as_they_are():
    with contextlib.closing(_engine(int8_cache=True)) as engine:
        assert mean_gap(POLICY, play(engine, 1, 3)) < 0.02


@pytest.mark.parametrize("sizes", [{"data": 2, "tensor": 2}, {"data": 1, "fsdp": 2, "expert": 2}])
def test_devices_that_share_conversations_and_heads_sample_the_same(roomy, sizes):
    mesh = mesh_of(**sizes)
    params = jax.device_put(PARAMS, param_shardings(RECURRENT, mesh))
    with contextlib.closing(_engine(params, mesh, max_sequences=8, pages=56)) as engine:
        together = _play_all(engine)
    for got, expected in zip(together, roomy, strict=True):
        for (_, reply), (_, wanted) in zip(got, expected, strict=True):
            np.testing.assert_array_equal(reply.ids, wanted.ids)
            np.testing.assert_allclose(reply.logp_plain, wanted.logp_plain, atol=CLOSE)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_state_comes_back_in_another_slot_to_the_last_bit(shards):
    sizes = engine_shape(max_sequences=4, pages=20)
    cache = empty_cache(RECURRENT, 20 * shards, 8, num_slots=4 * shards)
    draw = np.random.default_rng(0)
    cache = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype), cache)
    mesh = None
    if shards > 1:
        mesh = mesh_of(data=2, tensor=2)
        cache = jax.device_put(cache, cache_shardings(RECURRENT, mesh))
    before = jax.device_get(cache[:2])
    last = 4 * (shards - 1)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        out = PageSwaps(sizes, shards)
        contents = [out.swap_out(shards - 1, last + slot, [slot]) for slot in (2, 0, 1)]
        cache, copied = out.begin(cache, mesh)
        out.finish(jax.device_get(copied), None)
        back = PageSwaps(sizes, shards)
        back.swap_in(0, 3, [7], contents[0], 0)
        back.swap_in(shards - 1, last + 1, [8], contents[1], 0)
        cache, _ = back.begin(cache, mesh)
    after = jax.device_get(cache[:2])
    assert [type(each) for each in after] == [DeltaState, ConvState]
    for x, old in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(x[3], old[last + 2])
        np.testing.assert_array_equal(x[last + 1], old[last])
        others = [slot for slot in range(4 * shards) if slot not in (3, last + 1)]
        np.testing.assert_array_equal(x[others], old[others])
