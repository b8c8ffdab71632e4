"""Replies with drafts are those without: of policies with attention, whose numbers depend on all
that the cache holds."""

import contextlib
import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import RequestOptions, TokenConstraint
from ale_jax.model.params import init_params
from ale_jax.model.sharding import param_shardings
from tests.engine.playing import PATIENCE, PLAIN, STOP, key, play, prompt
from tests.engine.shapes import engine_shape
from tests.engine.test_engine import Speculating
from tests.engine.test_engine_adapters import adapters_of, engine_with
from tests.model.meshes import mesh_of
from tests.model.shapes import DENSE as FULL
from tests.model.shapes import LATENT, MIXED

pytestmark = pytest.mark.heavy

CLOSE = 2e-5
GREEDY = Sampling(temperature=0.0)
FEW_PAGES = 30  # of 4 tokens: little more than a conversation of full length has
TIGHT = {"max_sequences": 2, "page_tokens": 4, "pages": FEW_PAGES, "prefill_tokens": (16,)}
LONG = TIGHT | {"max_sequence_length": 520, "pages": 2 * 130}  # which are read in their pages


def _windowed(shape):
    """The shape with a window in its first layer."""
    first, *others = shape.layers
    mixer = dataclasses.replace(first.mixer, window=6)
    return dataclasses.replace(shape, layers=(dataclasses.replace(first, mixer=mixer), *others))


DENSE, MIXED_WINDOWED = _windowed(FULL), _windowed(MIXED)


@functools.cache
def _params(shape):
    """Of a policy that is sure of what it says, so that it repeats itself."""
    params = init_params(jax.random.key(1), shape)
    return params | {"final_norm_D": 12 * params["final_norm_D"]}


def _engine(shape, drafted, shards=0, sizes=TIGHT, **options):
    params, mesh, sizes = _params(shape), None, dict(sizes)
    if shards:
        mesh = mesh_of(data=shards)
        params = jax.device_put(params, param_shardings(shape, mesh))
        sizes["pages"], sizes["max_sequences"] = shards * sizes["pages"], 2 * shards
    sizes = engine_shape(**sizes, speculative_tokens=drafted)
    return Engine(shape, sizes, STOP, params, mesh=mesh, **options)


def _at_once(engine, sampling):
    """Eight conversations, of which the first four begin alike."""

    def one(number):
        first = prompt(1, 21) if number < 4 else None
        return [reply for _, reply in play(engine, number, 3, sampling, 18, first)]

    with ThreadPoolExecutor(8) as pool:
        return [reply for replies in pool.map(one, range(8)) for reply in replies]


def _assert_same(got, expected, names=("ids", "stop", "expert_TLK", "mask_id", "top_id_Tk")):
    for reply, wanted in zip(got, expected, strict=True):
        for name in names:
            np.testing.assert_array_equal(getattr(reply, name), getattr(wanted, name), name)
        for name in ("logp_mu", "logp_plain"):
            mine, other = getattr(reply, name), getattr(wanted, name)
            np.testing.assert_allclose(mine, other, atol=CLOSE, rtol=0, err_msg=name)


def _assert_drafted(engine):
    """Drafts were right, and drafts were wrong."""
    stats = engine.stats
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.decode_passes > 0


@pytest.fixture(scope="module")
def dense():
    """Engines with and without drafts."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(_engine(DENSE, k, record_left=True)))
            for k in (4, 0)
        ]


@pytest.mark.parametrize(
    ("sampling", "stops"),
    [(PLAIN, {"stop", "length", "context_full"}), (GREEDY, {"length", "context_full"})],
    ids=["drawn", "greedy"],
)
def test_replies_are_those_without_drafts(dense, sampling, stops):
    drafting, usual = dense
    before = dataclasses.replace(drafting.stats)
    replies = _at_once(drafting, sampling)
    _assert_same(replies, _at_once(usual, sampling))
    assert {reply.stop for reply in replies} == stops
    stats = drafting.stats
    accepted = stats.accepted_tokens - before.accepted_tokens
    assert 0 < accepted < stats.drafted_tokens - before.drafted_tokens
    assert stats.preemptions > before.preemptions and stats.shared_tokens > before.shared_tokens
    assert usual.stats.drafted_tokens == usual.stats.accepted_tokens == 0


class _Numbers:
    """Numbers masks as they come."""

    def __init__(self):
        self._numbers = {}

    def number(self, allowed_w):
        return self._numbers.setdefault(allowed_w.tobytes(), len(self._numbers))


class _Forcing:
    """Allows one token after another, of a cycle of five."""

    def next(self, ids, most):
        tokens = [40 + n % 5 for n in range(len(ids), len(ids) + most)]
        allowed = np.zeros((most, 3), np.uint32)
        for allowed_w, token in zip(allowed, tokens, strict=True):
            allowed_w[token // 32] = np.uint32(1 << token % 32)
        return [TokenConstraint(allowed_w.view(np.int32)) for allowed_w in allowed]


def _asked(engine, number, sampling=PLAIN, **options):
    conversation, options = engine.open(), RequestOptions(**options)
    asked = [engine.reply(conversation, prompt(1, 21), 60, sampling, key(number), options)]
    replies = [asked.pop().result(PATIENCE)]
    engine.end(conversation)
    return replies


def _each_with_options(engine):
    """Conversations beside each other: with a guide, with what top_k left, with the most probable
    tokens, cut by a stop checker, two that are free, and one whose guide makes it repeat itself."""
    cut = Sampling(top_k=3)
    with ThreadPoolExecutor(7) as pool:
        asked = [
            pool.submit(_asked, engine, 1, guide=Speculating(2)),
            pool.submit(_asked, engine, 2, cut, left=_Numbers()),
            pool.submit(_asked, engine, 3, top_logprobs=4),
            pool.submit(_asked, engine, 4, stop_checker=lambda ids: 33 if len(ids) > 33 else None),
            pool.submit(_asked, engine, 5),
            pool.submit(_asked, engine, 6, GREEDY),
            pool.submit(_asked, engine, 7, guide=_Forcing()),
        ]
        return [reply for each in asked for reply in each.result()]


def test_options_of_replies_hold_beside_and_within_drafts(dense):
    drafting, usual = dense
    before = dataclasses.replace(drafting.stats)
    replies = _each_with_options(drafting)
    _assert_same(replies, _each_with_options(usual))
    assert replies[0].mask_id is not None and len(set(replies[1].mask_id)) > 3
    assert replies[2].top_logp_Tk.shape == (len(replies[2].ids), 4)
    assert replies[6].ids.tolist() == [40, 41, 42, 43, 44] * 12
    assert drafting.stats.accepted_tokens > before.accepted_tokens


@pytest.mark.parametrize(
    ("shape", "shards", "sizes"),
    [(MIXED_WINDOWED, 2, LONG), (LATENT, 0, TIGHT)],
    ids=["long, two devices", "latents"],
)
def test_of_every_kind_of_layer_that_has_pages(shape, shards, sizes):
    """With experts recorded: those of each token that was kept."""
    with contextlib.closing(_engine(shape, 4, shards, sizes, record_experts=True)) as drafting:
        replies = _at_once(drafting, PLAIN)
        _assert_drafted(drafting)
    with contextlib.closing(_engine(shape, 0, shards, sizes, record_experts=True)) as usual:
        _assert_same(replies, _at_once(usual, PLAIN))


def test_of_conversations_with_different_adapters():
    said = []
    for drafted in (4, 0):
        sizes = {"max_sequences": 2, "speculative_tokens": drafted}
        engine = engine_with(MIXED, adapters_of(MIXED), **sizes)
        with contextlib.closing(engine), ThreadPoolExecutor(6) as pool:
            conversations = [engine.open(adapter) for adapter in (0, 1, 2, 0, 1, 2)]
            asked = pool.map(
                lambda number, engine=engine, conversations=conversations: engine.reply(
                    conversations[number], prompt(1, 21), 60, GREEDY, key(number)
                ).result(PATIENCE),
                range(6),
            )
            said.append(list(asked))
            if drafted:
                _assert_drafted(engine)
    _assert_same(*said)
    assert len({reply.ids.tobytes() for reply in said[0]}) > 2, "adapters differ"
