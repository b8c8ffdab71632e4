"""Conversations that take each other's place: they get the tokens that they get with room for all.

Whatever comes when, every reply and every record of experts is compared to the last bit.
"""

import dataclasses
import random
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import EngineStopped, RequestOptions
from ale_jax.model.params import init_params
from ale_jax.model.sharding import param_shardings
from tests.engine.playing import PATIENCE, PLAIN, STOP, key, prompt
from tests.engine.shapes import engine_shape
from tests.model.shapes import MIXED, changed

POLICY = changed(MIXED, num_layers=2)
PARAMS = init_params(jax.random.key(1), POLICY)
GROUP = prompt(1, 30)  # three pages of 8 are full before the last id, which is not read
PAGES = 14  # a conversation of full length has 12


@dataclasses.dataclass(frozen=True)
class Script:
    """What one conversation asks: of each turn the ids and the most tokens that it wants."""

    number: int
    turns: tuple[tuple[np.ndarray, int], ...]
    priority: int

    @classmethod
    def draw(cls, number: int, draw: random.Random) -> "Script":
        turns = [
            (prompt(100 * number + n, draw.randint(1, 25)), draw.randint(1, 30)) for n in range(3)
        ]
        if draw.random() < 0.4:
            turns[0] = (GROUP, turns[0][1])
        return cls(number, tuple(turns[: draw.randint(1, 3)]), draw.choice((0, 0, 0, 1, -1)))


def _play(engine, script, pause=lambda: None):
    conversation, replies = engine.open(), []
    for ids, most in script.turns:
        pause()
        options = RequestOptions(priority=script.priority)
        asked = engine.reply(conversation, ids, most, PLAIN, key(script.number), options)
        replies.append(asked.result(PATIENCE))
    engine.end(conversation)
    return replies


def _assert_same(got, expected):
    for reply, wanted in zip(got, expected, strict=True):
        assert reply.stop == wanted.stop
        for name in ("ids", "logp_plain", "logp_mu", "expert_TLK"):
            np.testing.assert_array_equal(getattr(reply, name), getattr(wanted, name), name)


def _assert_whole(engine):
    """Every page and every row is free."""
    for shard in engine._scheduler._shards:
        assert shard.running == [] and shard.prefilling is None
        pages, _ = shard.pages.allocate([], shard.pages.free)
        size = engine._shape.pages // len(engine._scheduler._shards)
        assert sorted(pages) == list(range(size))
    assert not engine._scheduler._waiting and not engine._scheduler._of


@pytest.fixture(scope="module")
def roomy():
    """What a script gets from an engine in which nobody is preempted."""
    engine = Engine(POLICY, engine_shape(prefill_tokens=(16,)), STOP, PARAMS, record_experts=True)
    known = {}

    def expected(seed, script):
        if (seed, script.number) not in known:
            known[seed, script.number] = _play(engine, script)
        return known[seed, script.number]

    yield expected
    assert engine.stats.preemptions == 0
    engine.close()


def _engine(ahead, shards=1):
    shape = engine_shape(
        dispatch_ahead=ahead, prefill_tokens=(16,), max_sequences=4 * shards, pages=PAGES * shards
    )
    devices = np.array(jax.devices()[:shards]).reshape((shards, 1, 1, 1, 1))
    mesh = Mesh(devices, tuple(vars(MeshShape())), axis_types=(AxisType.Auto,) * 5)
    params = jax.device_put(PARAMS, param_shardings(POLICY, mesh))
    return Engine(POLICY, shape, STOP, params, mesh=mesh, record_experts=True)


@pytest.mark.heavy
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_whoever_comes_when_all_get_what_they_get_with_room_for_all(ahead, shards, roomy):
    """Twelve conversations at once for four rows of each shard and the pages of little more than
    one of full length. Some are ended while they wait, read or write, or between two turns."""
    engine = _engine(ahead, shards)
    for seed in range(3):
        draw = random.Random(seed)
        scripts = [Script.draw(number, draw) for number in range(12)]
        pauses = random.Random(seed + 100)

        def pause(pauses=pauses):
            time.sleep(pauses.choice((0, 0, 0.01, 0.05)))

        with ThreadPoolExecutor(15) as pool:
            playing = [pool.submit(_play, engine, script, pause) for script in scripts]
            for number in range(50, 65):
                conversation = engine.open()
                cut_off = engine.reply(conversation, prompt(number, 20), 30, PLAIN, key(number))
                time.sleep(pauses.choice((0, 0.005, 0.02)))
                engine.end(conversation)
                assert cut_off.exception(PATIENCE) is None or "ended" in str(cut_off.exception())
        for script, each in zip(scripts, playing, strict=True):
            _assert_same(each.result(), roomy(seed, script))
    assert engine.stats.preemptions > 10 and engine.stats.swapped_pages > 10
    _assert_whole(engine)
    engine.close()


def test_idle_conversations_give_way_the_longest_idle_first(roomy):
    """With three idle ones in 12 of 14 pages, a fourth that needs four takes the pages of one."""
    engine = _engine(False)
    idle, first = [], []
    for number in range(3):
        idle.append(engine.open())
        first.append(
            engine.reply(idle[-1], prompt(number, 25), 5, PLAIN, key(number)).result(PATIENCE)
        )
    assert engine.stats.preemptions == 0
    engine.reply(engine.open(), prompt(9, 25), 5, PLAIN, key(9)).result(PATIENCE)
    sequences = [engine._scheduler._of[each] for each in idle]
    assert [each.has_slot for each in sequences] == [False, True, True]
    assert engine.stats.preemptions == 1
    # And it comes back, now in place of the second one, with what it had.
    again = engine.reply(idle[0], prompt(20, 9), 7, PLAIN, key(0)).result(PATIENCE)
    assert [each.has_slot for each in sequences] == [True, False, True]
    script = Script(0, ((prompt(0, 25), 5), (prompt(20, 9), 7)), 0)
    _assert_same([first[0], again], roomy("idle", script))
    engine.close()


@pytest.mark.heavy
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_a_higher_priority_takes_the_place_of_who_writes(ahead, roomy):
    engine, order, high = _engine(ahead), [], []

    def ask(number, priority):
        def note(ids):
            order.append(number)
            if order == [1]:
                high.append(ask(2, 5))

        options = RequestOptions(stop_checker=note, priority=priority)
        return engine.reply(engine.open(), prompt(number, 60), 30, PLAIN, key(number), options)

    replies = [ask(1, 0).result(PATIENCE), high[0].result(60)]
    # The second one was preempted when it was idle, by the first one on its way back.
    assert engine.stats.preemptions == 2
    assert order[-4:] == [1] * 4, "it waited until the other one was done"
    for number, reply in zip((1, 2), replies, strict=True):
        _assert_same([reply], roomy("high", Script(number, ((prompt(number, 60), 30),), 0)))
    engine.close()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_whenever_it_is_closed_everybody_gets_an_answer_or_an_error(seed):
    draw, engine = random.Random(seed), _engine(seed % 2 == 1)
    asked = []
    for number in range(10):
        script = Script.draw(number, draw)
        ids, most = script.turns[0]
        asked.append(engine.reply(engine.open(), ids, most, PLAIN, key(number)))
    time.sleep(draw.choice((0, 0.05, 0.1, 0.2)))
    engine.close()
    for each in asked:
        assert each.done()
        assert each.exception() is None or isinstance(each.exception(), EngineStopped)
