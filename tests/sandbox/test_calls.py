"""What a client sends for each operation, when it sends it again, and what it makes of answers."""

import json
import ssl

import httpx
import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone
from ale_jax.sandbox.sdk import calls
from ale_jax.sandbox.sdk.calls import Call, Pause, Send, exchange, failure, http_options
from ale_jax.sandbox.sdk.streams import tls_context
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row

BOX = "/v1/sandboxes/a%2Fb"
HTTP = httpx.Client(**http_options("http://127.0.0.1/", None, None))


@each_row(
    "call, line, body, read_s",
    [
        (calls.statuses(), "GET /v1/sandboxes", None, 60.0),
        (calls.status("a/b"), f"GET {BOX}", None, 60.0),
        (calls.stop("a/b"), f"DELETE {BOX}", None, 60.0),
        (
            calls.run("a/b", "ls", 5.0, "s", 7.0),
            f"POST {BOX}/run",
            {"command": "ls", "timeout": 5.0, "session": "s"},
            37.0,
        ),
        (calls.exec("a/b", {"argv": ["ls"]}, 7.0), f"POST {BOX}/exec", {"argv": ["ls"]}, 37.0),
        (calls.spawn("a/b", {"argv": "ls"}), f"POST {BOX}/spawn", {"argv": "ls"}, None),
        (
            calls.open_session("a/b", "s", None, "/tmp"),
            f"POST {BOX}/sessions",
            {"name": "s", "env": {}, "cwd": "/tmp"},
            60.0,
        ),
        (calls.close_session("a/b", "s t"), f"DELETE {BOX}/sessions/s%20t", None, 60.0),
        (
            calls.interrupt("a/b", "s", 2.0),
            f"POST {BOX}/sessions/s/interrupt",
            {"seconds": 2.0},
            60.0,
        ),
        (calls.read("a/b", "x y", 9), f"GET {BOX}/files?path=x+y&max_bytes=9", None, 150.0),
        (calls.list_directory("a/b", "x"), f"GET {BOX}/directory?path=x", None, 60.0),
        (calls.pack("a/b", "x"), f"GET {BOX}/archive?path=x", None, 150.0),
        (calls.snapshot("a/b"), f"POST {BOX}/snapshot", None, 150.0),
        (calls.restore("a/b", "s"), f"POST {BOX}/restore", {"snapshot": "s"}, 150.0),
        (calls.fork("a/b", 3), f"POST {BOX}/fork", {"count": 3}, 630.0),
        (calls.reset("a/b"), f"POST {BOX}/reset", None, 60.0),
        (calls.kill_processes("a/b"), f"POST {BOX}/kill", None, 60.0),
        (calls.nodes(), "GET /v1/nodes", None, 60.0),
        (calls.stats(), "GET /v1/stats", None, 60.0),
        (calls.events(None, 5), "GET /v1/events?limit=5", None, 60.0),
        (calls.events(0, 5), "GET /v1/events?limit=5&after=0", None, 60.0),
    ],
)
def test_an_operation_is_a_request(call, line, body, read_s):
    request = call.request(HTTP)
    assert f"{request.method} {request.url.raw_path.decode()}" == line
    assert (json.loads(request.content) if request.content else None) == body
    assert request.headers.get("Content-Type") == (body and "application/json")
    assert ("X-Request-Id" in request.headers) == (request.method != "GET")
    timeouts = {"connect": 10.0, "read": read_s, "write": 30.0, "pool": 120.0}
    assert request.extensions["timeout"] == timeouts
    assert call.id == ("a/b" if BOX in line else "")


def test_content_is_sent_as_it_is():
    request = calls.unpack("a/b", b"tar", "x").request(HTTP)
    assert (request.content, request.headers["Content-Type"]) == (b"tar", "application/x-tar")
    form = calls.write("a/b", {"x y": b"1", "z": b"2"}).request(HTTP)
    boundary = form.headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    head = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="file"\r\n\r\n{}\r\n'
    parts = [head.format(boundary, name, data) for name, data in (("x%20y", 1), ("z", 2))]
    assert form.content.decode() == f"{''.join(parts)}--{boundary}--\r\n"
    spec = SandboxSpec(memory_mb=64)
    body = json.loads(calls.warm(spec, 2).request(HTTP).content)
    assert body["count"] == 2 and SandboxSpec.from_json(body["spec"]) == spec


ECHO = Call("POST", "/x", lambda answer: answer.text, "box", seconds=None)
BUSY, BROKEN = httpx.Response(429, json={}), httpx.ConnectError("no route")
FULL = httpx.Response(503, json={"error": {"kind": "pool_full", "message": "m", "remedy": "r"}})


def paused(*outcomes):
    """How long is waited between the outcomes, and what comes out of the last one."""
    steps, pauses = exchange(ECHO, ECHO.request(HTTP)), []
    sent = {next(steps)}
    try:
        for outcome in outcomes:
            step = steps.send(outcome)
            assert isinstance(step, Pause)
            pauses.append(step.seconds)
            sent.add(next(steps))
    except StopIteration as end:
        assert len({step.request for step in sent if isinstance(step, Send)}) == 1
        return pauses, end.value
    except Exception as error:
        return pauses, error
    raise AssertionError("it wants to go on")


def test_the_same_request_is_sent_again_while_the_service_is_busy():
    assert paused(httpx.Response(200, text="y")) == ([], "y")
    assert paused(BUSY, BROKEN, httpx.Response(201, text="y")) == ([0.1, 0.5], "y")
    pauses, error = paused(BUSY, BUSY, BUSY, BUSY)
    assert pauses == [0.1, 0.5, 2.0] and "answered 429" in str(error)
    pauses, error = paused(*[BROKEN] * 4)
    assert len(pauses) == 3 and type(error) is SandboxError
    told = "no answer from http://127.0.0.1/ (ConnectError: no route); type: ale-sandbox serve"
    assert str(error) == told
    pauses, error = paused(BUSY, FULL)
    assert pauses == [0.1] and type(error) is PoolFull and str(error) == "m; r"


@each_row(
    "id, error, expected",
    [
        (
            "a",
            {"kind": "sandbox_gone", "message": "m", "cause": "idle"},
            SandboxGone("a", Cause.IDLE),
        ),
        ("a", {"kind": "not_found", "message": "m"}, SandboxGone("a", None)),
        ("", {"kind": "not_found", "message": "m"}, SandboxError("m")),
        ("a", {"kind": "sandbox_lost", "message": "m", "remedy": "r"}, SandboxLost("m; r")),
        ("a", {"kind": "forbidden", "message": "m", "remedy": ""}, PermissionError("m")),
        ("a", {"kind": "new", "message": "m"}, SandboxError("m")),
        (
            "a",
            {"kind": "new"},
            SandboxError('the service answered 400: b\'{"error": {"kind": "new"}}\''),
        ),
        ("a", 3, SandboxError("the service answered 400: b'{\"error\": 3}'")),
    ],
)
def test_an_error_is_what_the_service_says(id, error, expected):
    found = failure(400, json.dumps({"error": error}).encode(), id)
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_a_connection_has_a_url_and_a_token_that_can_be_sent():
    tls = ssl.create_default_context()
    plain, secret = (
        http_options(f"{s}://127.0.0.1/", "t" * 16, tls_context(s + "://", tls))
        for s in ("http", "https")
    )
    assert plain["base_url"] == "http://127.0.0.1" and plain["verify"] is False
    assert secret["verify"] is tls and not secret["trust_env"]
    assert secret["headers"] == {"Authorization": f"Bearer {'t' * 16}"}
    assert http_options("http://127.0.0.1", None, None)["headers"] == {}
    for url, token in (
        ("127.0.0.1", None),
        ("http://127.0.0.1", "a b"),
        ("http://127.0.0.1", "ä"),
        ("ftp://127.0.0.1", "t"),
    ):
        with pytest.raises(ValueError, match=r"must begin with|no token may have"):
            http_options(url, token, None)
