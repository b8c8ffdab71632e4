"""Requests for what no sandbox has: a process without a program, a port beyond the last one."""

import pytest

from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.service.rock_wire import ask, refusal, started


@pytest.mark.parametrize("call", ["exec", "spawn"])
def test_a_process_without_words_is_invalid(http, memory, call):
    with memory.client() as client:
        client.start(SandboxSpec())
    answer = http.post(f"/v1/sandboxes/box-0/{call}", json={"argv": []})
    assert answer.status_code == 422 and "argv" in answer.json()["error"]["message"]
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
