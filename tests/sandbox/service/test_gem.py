"""The front for GEM's clients, with the shell worlds."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ale_jax.agent.tools import render_tool_call
from ale_jax.envs.shell.families import FAMILIES, generate
from ale_jax.sandbox.pool.api import Cause
from ale_jax.sandbox.service import gem
from ale_jax.sandbox.service.access import ServiceSettings
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, over_memory

V1 = "/apis/v1/envs/gem"
FAMILY = next(iter(FAMILIES))
CROWD = 40  # asyncio's own threads are fewer on any machine


class Meeting:
    """An episode that begins when CROWD of them do."""

    barrier = threading.Barrier(CROWD)
    closed = 0

    def reset(self, seed):
        self.barrier.wait(20)
        return "all are here", {}

    def close(self):
        Meeting.closed += 1


def never(sandbox):
    raise ValueError("no such game")


@pytest.fixture
def broken():
    with over_memory(fronts=[gem.front({"game:none": never}, SPEC)]) as service:
        yield service


@pytest.fixture
def crowd():
    settings = ServiceSettings(port=0)
    fronts = [gem.front({"game:meet": lambda sandbox: Meeting()}, SPEC)]
    with over_memory(settings, fronts=fronts) as service:
        yield service


def ask(http, path, status=200, /, **body):
    answer = http.post(f"{V1}/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.heavy
def test_an_episode(real):
    with real.http() as http:
        assert f"shell:{FAMILY}" in ask(http, "list")["env_id"]
        id = ask(http, "make", env_id=f"shell:{FAMILY}")["sandbox_id"]
        world = generate(FAMILY, 5)
        assert ask(http, "reset", sandbox_id=id, seed=5)["observation"] == world.instruction
        step = ask(http, "step", sandbox_id=id, action="no call")
        assert step["info"] == {"malformed": True, "failed": True} and not step["terminated"]
        for call in world.oracle:
            step = ask(http, "step", sandbox_id=id, action=render_tool_call(call))
        assert (step["reward"], step["terminated"], step["truncated"]) == (1.0, True, False)
        again = ask(http, "step", 409, sandbox_id=id, action="over")
        assert again["error"]["kind"] == "out_of_turn"
        ask(http, "close", sandbox_id=id)
        ask(http, "step", 404, sandbox_id=id, action="closed")


@pytest.mark.heavy
def test_who_may_not_and_what_is_not(real):
    with real.http(ANN) as ann, real.http(BOB) as bob:
        assert FAMILY in ask(ann, "make", 422, env_id="shell:nothing")["error"]["message"]
        id = ask(ann, "make", env_id=f"shell:{FAMILY}")["sandbox_id"]
        for path, more in (("reset", {}), ("step", {"action": ""}), ("close", {})):
            ask(bob, path, 404, sandbox_id=id, **more)
            ask(ann, path, 404, sandbox_id="nobody", **more)
        assert "split" in ask(ann, "reset", 422, sandbox_id=id, seed=-1)["error"]["message"]
        ask(ann, "close", sandbox_id=id)


def test_a_world_that_cannot_be_made_leaves_no_sandbox(broken):
    with broken.http() as http:
        assert "no such game" in ask(http, "make", 422, env_id="game:none")["error"]["message"]
        assert [each.cause for each in broken.pool.members.values()] == [Cause.STOPPED]


def test_more_episodes_at_once_than_the_pool_has_threads(crowd):
    with crowd.http() as http, ThreadPoolExecutor(CROWD) as clients:
        ids = [ask(http, "make", env_id="game:meet")["sandbox_id"] for _ in range(CROWD)]
        ends = clients.map(lambda id: ask(http, "reset", sandbox_id=id)["observation"], ids)
        assert set(ends) == {"all are here"}
        ask(http, "close", sandbox_id=ids[0])
        crowd.pool.end(f"ann~{ids[1]}", Cause.IDLE)
        ask(http, "make", env_id="game:meet")
        assert Meeting.closed == 2


@pytest.mark.parametrize("body", [{}, {"sandbox_id": "x", "sed": 1}, {"sandbox_id": 5}])
def test_a_body_that_means_nothing(real, body):
    with real.http() as http:
        ask(http, "reset", 422, **body)
