"""Several engines as one: each conversation gets what it would get from any of them."""

from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import FLOAT32, SAME
from ale_jax.engine.engine import Engine
from ale_jax.engine.engines import Engines
from ale_jax.engine.request import EngineStopped
from ale_jax.model.params import init_params
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.model.sharding import make_mesh, param_shardings
from tests.engine.playing import PATIENCE, PLAIN, STOP, assert_same, key, play, prompt
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE, changed

POLICY = changed(MOE, num_layers=1)
PARAMS = init_params(jax.random.key(1), POLICY)
COUNT = 4


@pytest.fixture(scope="module")
def copies():
    mesh = make_mesh(MeshShape(data=4, tensor=2))
    meshes = engine_meshes(mesh, 2)
    copy = SamplingCopy(POLICY, FLOAT32, mesh, SAME, meshes)
    weights = copy(jax.device_put(PARAMS, param_shardings(POLICY, mesh)))
    return list(zip(weights, meshes, strict=True))


@pytest.fixture
def engines(copies):
    shape = engine_shape(prefill_tokens=(16,))
    engines = Engines([Engine(POLICY, shape, STOP, *each) for each in copies])
    yield engines
    engines.close()


@pytest.mark.heavy
def test_conversations_are_spread_and_get_the_tokens_of_one_engine(engines, copies):
    worked = []
    engines.observe(lambda *work: worked.append(work), lambda *lent: None)
    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(lambda n: play(engines, n, 2), range(8)))
    assert {number for number, _, _ in worked} == set(range(COUNT))
    for each in range(COUNT):
        times = [at for number, *work in worked if number == each for at in work]
        assert times == sorted(times), "an engine does one thing after another"
    assert all(each.stats.sampled_tokens for each in engines._engines), "all have played"
    sampled = sum(len(reply.ids) for turns in played for _, reply in turns)
    assert engines.stats.sampled_tokens == sampled
    alone = Engine(POLICY, engine_shape(prefill_tokens=(16,)), STOP, *copies[0])
    for number, turns in enumerate(played):
        assert_same(turns, play(alone, number, 2))
    alone.close()


def test_members_of_a_group_meet_where_there_is_room(engines):
    """Eight of two groups over four engines: two of one group on each, of which the second finds
    the first one's pages."""
    members = [(prompt(group, 45), engines.open()) for _ in range(4) for group in range(2)]
    for number, (ids, member) in enumerate(members):
        engines.reply(member, ids, 5, PLAIN, key(number)).result(PATIENCE)
    assert [each.stats.shared_tokens for each in engines._engines] == [40] * COUNT


def test_an_ended_conversation_frees_its_place(engines):
    for number in range(3 * COUNT):  # each engine has four slots
        play(engines, number, 1)
    conversation = engines.open()
    engines.end(conversation)
    engines.end(conversation)
    with pytest.raises(EngineStopped, match="ended"):
        engines.reply(conversation, prompt(1, 6), 8, PLAIN, key(1))


def test_new_weights_reach_all_of_them(engines, copies):
    engines.publish([params for params, _ in copies], 3)
    assert engines.version == 3
    with ThreadPoolExecutor(COUNT) as pool:
        played = list(pool.map(lambda n: play(engines, n, 1), range(COUNT)))
    assert {int(v) for turns in played for _, reply in turns for v in reply.version} == {3}


def test_the_failure_of_one_is_the_failure_of_all(engines, monkeypatch):
    engines.check()

    def out_of_memory(dispatch):
        raise MemoryError("the device has none left")

    failing = engines._engines[2]
    monkeypatch.setattr(failing, "_begin", out_of_memory)
    monkeypatch.setattr("threading.excepthook", lambda failed: None)
    with ThreadPoolExecutor(COUNT) as pool:
        asked = [pool.submit(play, engines, n, 1) for n in range(COUNT)]
    assert sum(isinstance(each.exception(), EngineStopped) for each in asked) == 1
    with pytest.raises(EngineStopped, match="has none left"):
        engines.check()
