"""Whether sandboxes and nodes can be used, and what happened to them, as programs ask for it."""

import asyncio
import dataclasses

import pytest

from ale_jax.sandbox.pool.api import Cause, State
from ale_jax.sandbox.service import operations
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, ROOT


@pytest.fixture
def box(memory):
    with memory.client(ANN) as client:
        client.start(SPEC, id="box")
    return lambda **now: memory.pool.members.update(
        **{"ann~box": dataclasses.replace(memory.pool.members["ann~box"], **now)}
    )


def asked(http, path="/v1/sandboxes/box/health"):
    answer = http.get(path)
    content = answer.json()
    return answer.status_code, content.get("error", content)


def test_a_sandbox_that_takes_commands(http, box):
    box(busy=2, generation=1)
    assert asked(http) == (200, {"state": "running", "generation": 1, "busy": 2})
    box(silent_seconds=0.25)  # no answer yet to a question of one tick ago
    assert asked(http)[0] == 200


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"state": State.PENDING}, "sandbox 'box' is pending"),
        ({"state": State.STARTING}, "sandbox 'box' is starting"),
        ({"silent_seconds": 0.5}, "sandbox 'box' has not answered for 0.5 s"),
    ],
)
def test_one_that_does_not_now(http, box, now, told):
    box(**now)
    status, error = asked(http)
    assert (status, error["kind"], error["message"]) == (503, "not_ready", told)


@pytest.mark.parametrize("state", [State.STOPPING, State.STOPPED, State.FAILED])
def test_one_that_does_not_live_any_more(http, box, state):
    box(state=state, cause=Cause.IDLE)
    status, error = asked(http)
    assert (status, error["kind"], error["cause"]) == (410, "sandbox_gone", "idle")


def test_one_that_never_was_and_one_of_another(memory, http, box):
    assert asked(http, "/v1/sandboxes/nobody/health")[0] == 404
    with memory.http(BOB) as others:
        assert asked(others)[0] == 404
    memory.pool.members.clear()
    assert asked(http)[0] == 404


def test_a_node_that_does_not_answer_is_not_waited_for(memory, http, box, monkeypatch):
    monkeypatch.setattr(operations, "NODE_S", 0.05)
    monkeypatch.setattr(memory.pool, "status", lambda id: asyncio.sleep(3600))
    status, error = asked(http)
    assert (status, error["message"]) == (503, "the node of sandbox 'box' does not answer")


def test_a_node(memory, http):
    path = "/v1/nodes/here/health"
    assert asked(http, path) == (200, {"slots": 4, "used": 0, "ready": 0})
    with memory.client(ANN) as client:
        client.start_many(SPEC, 4)
    status, error = asked(http, path)
    assert (status, error["message"]) == (503, "all 4 slots of node 'here' are taken")
    memory.pool.node_alive = False
    assert asked(http, path)[0] == 410
    status, error = asked(http, "/v1/nodes/host/0123abcd/health")  # as nodes of a cluster are named
    assert (status, error["message"]) == (404, "there is no node 'host/0123abcd'")


@pytest.fixture
def told(memory):
    """Records events: of ann's sandbox a, of bob's b, of c that is nobody's, and of a node."""
    with memory.client(ANN) as ann, memory.client(BOB) as bob:
        ann.start(SPEC, id="a")
        bob.start(SPEC, id="b")
    for kind, sandbox in (("one", "ann~a"), ("two", "bob~b"), ("three", "c"), ("four", "ann~a")):
        memory.pool.ring.record(kind, "why", sandbox=sandbox)
    memory.pool.ring.record("node_lost", "why", node="here")
    return memory


def kinds(answer) -> list[str]:
    return [event.kind for event in answer.events]


def test_events_are_told_to_whom_they_concern(told):
    with told.client(ANN) as ann, told.client(BOB) as bob, told.client(ROOT) as root:
        assert kinds(ann.events()) == ["one", "four"]
        assert kinds(bob.events()) == ["two"]
        everything = root.events()
        assert kinds(everything) == ["one", "two", "three", "four", "node_lost"]
        assert everything.events[-1].fields == {"node": "here"}
        assert (everything.events[0].sandbox, everything.events[0].detail) == ("ann~a", "why")


def test_a_follower_misses_none_and_is_told_none_twice(told):
    with told.client(ROOT) as root:
        assert kinds(root.events(limit=2)) == ["four", "node_lost"]  # the latest
        seen, after = [], 0
        while (answer := root.events(after, limit=2)).events:
            seen, after = seen + kinds(answer), answer.next
        assert seen == ["one", "two", "three", "four", "node_lost"]
        told.pool.ring.record("five", "")
        assert kinds(root.events(after)) == ["five"]
    with told.client(BOB) as bob:  # for whom the last ones are another's
        after = bob.events().next
        told.pool.ring.record("six", "", sandbox="bob~b")
        assert kinds(bob.events(after)) == ["six"]


def test_a_follower_is_told_that_it_came_too_late(told, monkeypatch):
    monkeypatch.setattr("ale_jax.sandbox.pool.events.MAX_EVENTS", 2)
    with told.client(ROOT) as root:
        first = root.events(0).events[0].number
        told.pool.ring.record("five", "")
        assert root.events(first).missed is False  # only what it has seen made room
        told.pool.ring.record("six", "")
        assert root.events(first).missed is True


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=0", "limit=1001"])
def test_a_question_that_makes_no_sense_is_refused(http, query):
    status, error = asked(http, f"/v1/events?{query}")
    assert (status, error["kind"]) == (422, "invalid")
