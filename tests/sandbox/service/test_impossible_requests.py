"""Requests for what no sandbox has: a process without a program, a port beyond the last one."""

import pytest

from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.service.rock_wire import ask, refusal, started


@pytest.mark.parametrize("call", ["exec", "spawn"])
def test_a_process_without_words_is_invalid(http, memory, call):
    with memory.client() as client:
        client.start(SandboxSpec())
    answer = http.post(f"/v1/sandboxes/box-0/{call}", json={"argv": []})
    assert answer.status_code == 422 and "argv" in answer.json()["error"]["message"]
    assert memory.pool.calls == []


@each_row(
    "asked, name",
    [
        ({"network": {"mode": "open", "networks": ["10.0.0.0/8"]}}, "networks"),
        ({"network": {"mode": "open", "proxy": "10.0.5.7:3128"}}, "proxy"),
        ({"network": {"mode": "open"}, "uplink": {"networks": ["10.0.0.0/8"]}}, "uplink"),
        ({"network": {"mode": "open"}, "uplink_network": ["10.0.0.0/8"]}, "uplink_network"),
    ],
)
def test_what_is_around_a_host_is_not_a_tenants_to_say(http, memory, asked, name):
    answer = http.post("/v1/sandboxes", json={"spec": asked})
    assert answer.status_code == 422
    assert f"no field {name!r}" in answer.json()["error"]["message"]
    beside = http.post("/v1/sandboxes", json={"spec": {}, "uplink": asked})
    assert beside.status_code == 422 and "uplink" in beside.json()["error"]["message"]
    assert memory.pool.calls == []


@pytest.mark.heavy
def test_rocks_client_is_refused_both_and_keeps_its_sandbox(real):
    with real.http() as http:
        id = started(http)
        refused = ask(http, "execute", sandbox_id=id, command=[])
        assert "at least one word" in refusal(refused)
        ask(http, "create_session", sandbox_id=id, session="s")
        model = "rock model-service start --type local --port 70000"
        refused = ask(http, "run_in_session", sandbox_id=id, session="s", command=model)
        assert "port 70000 must be" in refusal(refused)
        done = ask(http, "run_in_session", sandbox_id=id, session="s", command="echo here")
        assert done["result"]["output"] == "here"
        ask(http, "delete", sandbox_id=id)
