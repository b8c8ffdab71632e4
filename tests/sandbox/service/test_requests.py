"""Requests that are wrong, hostile, or come twice, and failures as a client sees them."""

import asyncio
import dataclasses
import json
import re
import socket
import time

import pytest

from ale_jax.sandbox.api import ImageMissing, SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, NodeFull, PoolFull, SandboxGone
from ale_jax.sandbox.sdk import calls
from ale_jax.sandbox.service.access import ServiceSettings, Tokens
from ale_jax.sandbox.service.guard import Guard
from ale_jax.sandbox.service.metrics import Metrics
from ale_jax.sandbox.service.server import bind
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.service.conftest import ANN, SMALL, TOKENS

SPEC = SandboxSpec()
RUN = "/v1/sandboxes/box-0/run"
HOST = [(b"host", b"127.0.0.1")]


@pytest.fixture
def box(memory):
    with memory.client() as client:
        yield client.start(SPEC)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/sandboxes", {"sepc": {}}, "'sepc': did you mean 'spec'"),
        ("/v1/sandboxes", {"spec": {"memory_md": 1}}, "'memory_md': did you mean 'memory_mb'"),
        ("/v1/sandboxes", {"spec": {"memory_mb": "1"}}, "memory_mb '1' must be int"),
        ("/v1/sandboxes", {"spec": {"memory_mb": 1}}, "memory_mb 1 must be in [16, 1073741824]"),
        ("/v1/sandboxes", {"spec": {"network": {"mod": "none"}}}, "did you mean 'mode'"),
        ("/v1/sandboxes", {"id": "../x"}, "id"),
        ("/v1/sandboxes", {"idle_seconds": -1}, "idle_seconds"),
        ("/v1/sandboxes", {"labels": dict.fromkeys(map(str, range(65)), "")}, "65: use at most 64"),
        ("/v1/sandboxes", {"labels": {"x": "x" * 16384}}, "16393 bytes of JSON: use at most 16384"),
        ("/v1/sandboxes", {"labels": {"\1" * 3000: ""}}, "use at most 16384"),
        ("/v1/sandboxes/many", {"count": 2, "labels": {"x": "x" * 16384}}, "use at most 16384"),
        ("/v1/sandboxes", [], "object"),
        ("/v1/sandboxes/many", {"count": 2, "id": "x"}, "id"),
        (RUN, {}, "command"),
        (RUN, {"command": 5}, "command"),
        (RUN, {"command": "x", "timeout": 0}, "timeout"),
        (RUN, {"command": "x", "timeout": "1"}, "timeout"),
        ("/v1/sandboxes/box-0/exec", {"argv": "x", "stdin": "ä!"}, "stdin is not base64"),
        ("/v1/sandboxes/box-0/fork", {"count": 100_000}, "count"),
    ],
)
def test_a_body_that_means_nothing_is_explained(http, box, memory, path, body, told):
    answer = http.post(path, json=body)
    assert answer.status_code == 422 and told in answer.json()["error"]["message"]
    assert memory.pool.calls == [] and len(memory.pool.members) == 1


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"command": "x"} x'])
def test_what_is_no_json_is_said_to_be_none(http, box, body):
    answer = http.post(RUN, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and "error" in answer.json()


def test_infinity_is_no_timeout(http, box):
    answer = http.post(
        RUN,
        content=b'{"command": "x", "timeout": Infinity}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422


def test_a_path_or_a_method_that_is_not_there(http):
    assert http.get("/v1/nothing").json()["error"]["kind"] == "no_route"
    assert http.put("/v1/nodes").status_code == 405


def test_a_body_that_is_too_long_is_refused(http, box, memory):
    long = "x" * SMALL.json_bytes
    answer = http.post(RUN, json={"command": long})
    assert answer.status_code == 413
    assert answer.json()["error"]["kind"] == "too_large"
    pieces = (b"x" * 1000 for _ in range(SMALL.json_bytes // 1000 + 1))
    assert http.post(RUN, content=pieces).status_code == 413
    files = "/v1/sandboxes/box-0/files?path=x"
    assert http.put(files, content=b"x" * SMALL.upload_bytes).status_code == 204
    assert http.put(files, content=b"x" * (SMALL.upload_bytes + 1)).status_code == 413
    directory = "/v1/sandboxes/box-0/directory?path=/tests"
    for size, status in ((SMALL.upload_bytes, 413), (SMALL.upload_bytes - 1000, 204)):
        content, kind = calls.form_of({"x": b"x" * size})
        answer = http.put(directory, content=content, headers={"Content-Type": kind})
        assert answer.status_code == status
    assert [method for _, method, _ in memory.pool.calls] == ["write", "replace_directory"]


def test_a_body_that_never_ends_is_given_up(memory, box):
    with raw(memory, f"POST {RUN} HTTP/1.1", "Content-Length: 30") as connection:
        connection.sendall(b'{"command"')
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    assert memory.pool.calls == []


def test_whoever_hangs_up_in_the_middle_of_a_body_asked_for_nothing(memory, http, box):
    with raw(memory, f"POST {RUN} HTTP/1.1", "Content-Length: 30") as connection:
        connection.sendall(b'{"command"')
    assert http.get("/healthz").status_code == 200
    assert memory.pool.calls == []


def raw(memory, line, *headers):
    host, port = memory.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = [line, "Host: x", f"Authorization: Bearer {ANN}", "Content-Type: application/json"]
    connection.sendall("\r\n".join([*head, *headers, "", ""]).encode())
    return connection


@pytest.mark.parametrize(
    ("error", "status", "kind", "seen"),
    [
        (SandboxGone("ann~box-0", None), 404, "not_found", SandboxGone),
        (SandboxGone("ann~box-0", Cause.IDLE), 410, "sandbox_gone", SandboxGone),
        (SandboxLost("it died"), 410, "sandbox_lost", SandboxLost),
        (PoolFull("no slot"), 503, "pool_full", PoolFull),
        (NodeFull("no room"), 507, "node_full", NodeFull),
        (ImageMissing("no image"), 404, "image_missing", ImageMissing),
        (SandboxStartError("no memory"), 500, "start_failed", SandboxStartError),
        (SandboxError("no such session"), 409, "sandbox_error", SandboxError),
        (FileNotFoundError("no file"), 404, "file_not_found", FileNotFoundError),
        (OSError("no room"), 409, "os_error", OSError),
        (ValueError("no sense"), 422, "invalid", ValueError),
        (ZeroDivisionError("secret"), 500, "internal", SandboxError),
    ],
)
def test_a_failure_keeps_its_kind(memory, http, box, error, status, kind, seen):
    memory.pool.answers["run"] = error
    answer = http.post(RUN, json={"command": "x"})
    assert answer.status_code == status and answer.json()["error"]["kind"] == kind
    assert "secret" not in answer.text and "Traceback" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)
    with pytest.raises(seen) as caught:
        box.run("x")
    assert type(caught.value) is seen


def test_why_it_is_gone_is_told(memory, box):
    box.close()
    with pytest.raises(SandboxGone) as gone:
        box.run("x")
    assert (gone.value.id, gone.value.cause) == ("box-0", "stopped")
    memory.pool.members.clear()
    box.close()


def test_a_full_pool_is_told_by_start(memory):
    memory.pool.start_error = PoolFull("all 4 slots are taken")
    with memory.client() as client, pytest.raises(PoolFull, match="4 slots"):
        client.start(SPEC)


def test_an_error_in_a_stream_is_its_last_line(memory, box):
    memory.pool.answers["stream"] = [("stderr", b"\xff"), SandboxLost("it died")]
    with box.spawn("x") as output, pytest.raises(SandboxLost, match="it died"):
        for number, piece in enumerate(output):
            assert piece == [("stdout", b"first\n"), ("stderr", b"\xff")][number]
    assert output.exit_code is None


def test_a_stream_without_an_end_broke(memory, box):
    memory.pool.answers["stream"] = [None]
    with box.spawn("x") as output, pytest.raises(SandboxLost, match="broke"):
        assert list(output)


def test_a_stream_ends_with_the_client_that_left_it(memory, box):
    with box.spawn("x") as output:
        assert next(iter(output)) == ("stdout", b"first\n")
    for _ in range(500):
        if memory.pool.closed_streams:
            return
        time.sleep(0.01)
    pytest.fail("the stream goes on")


def test_a_service_that_is_not_there_is_named(memory, monkeypatch):
    assert len(calls.PAUSES) == 3
    monkeypatch.setattr(calls, "PAUSES", (0.01,) * 3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = type(memory)(f"http://127.0.0.1:{port}", None).client()
    with pytest.raises(SandboxError, match=f"127.0.0.1:{port}.*ale-sandbox serve"):
        client.nodes()


def test_small_answers_are_sent_at_once():
    with bind(SMALL) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio does not set TCP_NODELAY


def test_an_address_that_cannot_be_had_is_named():
    with bind(SMALL) as listener:
        taken = dataclasses.replace(SMALL, port=listener.getsockname()[1])
        with pytest.raises(ValueError, match=f"{taken.port}.*choose another"):
            bind(taken)


def test_the_documentation_loads(memory):
    with memory.http(None) as http:
        schema = http.get("/openapi.json").json()
        page = http.get("/docs").text
    spec = schema["paths"]["/v1/sandboxes"]["post"]
    body = schema["components"]["schemas"]["StartBody"]["properties"]["spec"]
    assert "memory_mb" in json.dumps(body)
    assert "500 `start_failed`" in spec["description"] and "401" in spec["responses"]
    assert "POST /v1/sandboxes/{id}/run" in page and "<script" not in page
    assert "command_seconds" in page and "did you mean" not in page
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(schema)):
        part = schema
        for name in reference.split("/"):
            part = part[name]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)


def test_the_metrics_count(memory, http, box):
    http.post(RUN, json={"command": "x"})
    http.post(RUN, json={})
    lines = http.get("/metrics").text.splitlines()
    assert 'ale_sandbox_calls_total{operation="run",status="200"} 1.0' in lines
    assert 'ale_sandbox_calls_total{operation="run",status="422"} 1.0' in lines
    assert 'ale_sandbox_failures_total{kind="invalid",operation="run"} 1.0' in lines
    assert 'ale_sandbox_call_seconds_bucket{le="+Inf",operation="run"} 2.0' in lines
    assert 'ale_sandbox_call_seconds_bucket{le="60.0",operation="run"} 2.0' in lines
    assert 'ale_sandbox_call_seconds_count{operation="run"} 2.0' in lines
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert 0 < float(values['ale_sandbox_call_seconds_sum{operation="run"}']) < 60
    assert 'ale_sandbox_sandboxes{state="running"} 1.0' in lines
    assert 'ale_sandbox_node_slots{node="here"} 4.0' in lines
    assert "ale_sandbox_calls_under_way 1.0" in lines  # this one


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_call_that_the_end_of_the_service_breaks_off_is_answered(has_begun):
    sent = []

    async def app(scope, receive, send):
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(3600)

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    async def break_off():
        guard = Guard(app, ServiceSettings(), Tokens({}), Metrics())
        scope = {"type": "http", "method": "GET", "path": "/v1/stats", "headers": HOST}
        call = asyncio.ensure_future(guard(scope, receive, send))
        await asyncio.sleep(0.01)
        call.cancel()
        await call

    asyncio.run(break_off())
    assert sent[0]["status"] == (200 if has_begun else 502)
    assert sent[-1]["type"] == "http.response.body" and not sent[-1].get("more_body")


@pytest.mark.parametrize("more", [False, True])
def test_an_answer_that_broke_off_is_none_and_a_whole_one_stands(more):
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": more})
        raise RuntimeError("afterwards")

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    headers = [*HOST, (b"authorization", f"Bearer {ANN}".encode()), (b"x-request-id", b"1" * 32)]
    scope = {"type": "http", "method": "POST", "path": RUN, "headers": headers}
    asyncio.run(Guard(app, ServiceSettings(), Tokens(TOKENS), Metrics())(scope, receive, send))
    start, body = sent
    assert (start["status"], body["body"] == b"half") == ((500, False) if more else (200, True))
