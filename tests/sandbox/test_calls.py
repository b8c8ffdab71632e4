"""What a client sends for each operation, when it sends it again, and what it makes of answers."""

import asyncio
import json
import ssl

import httpx
import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone, State, Status
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.calls import Call, exchange, failure, http_options, tls_context
from ale_jax.sandbox.service import protocol
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row

STATUS = Status(
    *("a/b", "node", "runtime", State.RUNNING, None, 0, 0, 0.0, 0.0),
    SandboxSpec(command_seconds=7.0),
    {},
    (),
)
BOX = "/v1/sandboxes/a%2Fb"


class Asked(AsyncSandboxClient):
    """A client that notes what it would send instead of sending it."""

    def __init__(self):
        super().__init__("http://127.0.0.1/")
        self.calls, self.requests = [], []

    async def do(self, call):
        self.calls.append(call)
        self.requests.append(call.request(self.http))
        return {"interrupted": True} if call.endpoint is protocol.INTERRUPT else []


def asked(act):
    """The call, and its request, of what `act` does with a client and a sandbox."""
    client = Asked()
    asyncio.run(act(client, AsyncRemoteSandbox(client, STATUS)))
    ((call,), (request,)) = client.calls, client.requests
    return call, request


PROCESS = {"timeout": None, "cwd": "/work", "env": {}, "user": "", "stdin": ""}


@each_row(
    "act, line, body, read_s",
    [
        (lambda client, _: client.statuses(), "GET /v1/sandboxes", None, 60.0),
        (lambda _, box: box.status(), f"GET {BOX}", None, 60.0),
        (lambda _, box: box.close(), f"DELETE {BOX}", None, 60.0),
        (
            lambda _, box: box.run("ls", 5.0, "s"),
            f"POST {BOX}/run",
            {"command": "ls", "timeout": 5.0, "session": "s"},
            35.0,
        ),
        (lambda _, box: box.exec(["ls"]), f"POST {BOX}/exec", {"argv": ["ls"], **PROCESS}, 37.0),
        (
            lambda _, box: box.open_session("s", None, "/tmp"),
            f"POST {BOX}/sessions",
            {"name": "s", "env": {}, "cwd": "/tmp", "user": ""},
            60.0,
        ),
        (lambda _, box: box.close_session("s t"), f"DELETE {BOX}/sessions/s%20t", None, 60.0),
        (
            lambda _, box: box.interrupt("s", 2.0),
            f"POST {BOX}/sessions/s/interrupt",
            {"seconds": 2.0},
            60.0,
        ),
        (
            lambda _, box: box.expect("a", session="s"),
            f"POST {BOX}/sessions/s/expect",
            {"pattern": "a", "timeout": None},
            37.0,
        ),
        (lambda _, box: box.read("x y", 9), f"GET {BOX}/files?path=x+y&max_bytes=9", None, 150.0),
        (lambda _, box: box.list("x"), f"GET {BOX}/directory?path=x", None, 60.0),
        (lambda _, box: box.snapshot(), f"POST {BOX}/snapshot", None, 150.0),
        (lambda _, box: box.restore("s"), f"POST {BOX}/restore", {"snapshot": "s"}, 150.0),
        (lambda _, box: box.fork(3), f"POST {BOX}/fork", {"count": 3}, 630.0),
        (lambda _, box: box.reset(), f"POST {BOX}/reset", None, 60.0),
        (lambda _, box: box.kill_processes(), f"POST {BOX}/kill", None, 60.0),
        (lambda client, _: client.nodes(), "GET /v1/nodes", None, 60.0),
        (lambda client, _: client.stats(), "GET /v1/stats", None, 60.0),
        (lambda client, _: client.events(None, 5), "GET /v1/events?limit=5", None, 60.0),
        (lambda client, _: client.events(0, 5), "GET /v1/events?limit=5&after=0", None, 60.0),
    ],
)
def test_an_operation_is_a_request(act, line, body, read_s):
    call, request = asked(act)
    assert f"{request.method} {request.url.raw_path.decode()}" == line
    assert (json.loads(request.content) if request.content else None) == body
    assert request.headers.get("Content-Type") == (body and "application/json")
    assert ("X-Request-Id" in request.headers) == (request.method != "GET")
    timeouts = {"connect": 10.0, "read": read_s, "write": 30.0, "pool": 120.0}
    assert request.extensions["timeout"] == timeouts
    assert call.id == ("a/b" if BOX in line else "")


def test_a_process_whose_output_is_streamed_has_no_limit():
    client = AsyncSandboxClient("http://127.0.0.1/")
    request = Call(protocol.SPAWN, "a/b", body={"argv": "ls"}).request(client.http)
    assert request.extensions["timeout"]["read"] is None
    assert (request.method, request.url.raw_path.decode()) == ("POST", f"{BOX}/spawn")


def test_content_is_sent_as_it_is():
    _, request = asked(lambda _, box: box.unpack(b"tar", "x"))
    assert (request.content, request.headers["Content-Type"]) == (b"tar", "application/x-tar")
    assert (request.method, request.url.raw_path.decode()) == ("PUT", f"{BOX}/archive?path=x")
    _, form = asked(lambda _, box: box.write({"x y": b"1", "z": b"2"}))
    boundary = form.headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    head = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="file"\r\n\r\n{}\r\n'
    parts = [head.format(boundary, name, data) for name, data in (("x%20y", 1), ("z", 2))]
    assert form.content.decode() == f"{''.join(parts)}--{boundary}--\r\n"
    spec = SandboxSpec(memory_mb=64)
    _, warm = asked(lambda client, _: client.warm(spec, 2))
    body = json.loads(warm.content)
    assert body["count"] == 2 and SandboxSpec.from_json(body["spec"]) == spec


ECHO = Call(protocol.SPAWN, "box")
BUSY, BROKEN = httpx.Response(429, json={}), httpx.ConnectError("no route")
FULL = httpx.Response(503, json={"error": {"kind": "pool_full", "message": "m", "remedy": "r"}})


def paused(*outcomes, has_answered=False):
    """How long is waited between the outcomes, and what comes out of the last one."""
    left, pauses, sent = list(outcomes), [], set()
    request = httpx.Request("POST", "http://127.0.0.1/x?y")

    async def send(request):
        sent.add(request)
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def pause(seconds):
        pauses.append(seconds)

    try:
        result = asyncio.run(exchange(ECHO, request, send, has_answered, pause))
    except (SandboxError, RuntimeError) as error:
        result = error
    assert not left and sent == {request}
    return pauses, result


def test_the_same_request_is_sent_again_while_the_service_is_busy():
    assert paused(httpx.Response(200, text="y")) == ([], b"y")
    assert paused(BUSY, BROKEN, httpx.Response(201, text="y")) == ([0.1, 0.5], b"y")
    pauses, error = paused(BUSY, BUSY, BUSY, BUSY)
    assert pauses == [0.1, 0.5, 2.0] and "answered 429" in str(error)
    pauses, error = paused(*[BROKEN] * 4)
    assert len(pauses) == 3 and type(error) is SandboxError
    told = "no answer from http://127.0.0.1/ (ConnectError: no route); type: ale-sandbox serve"
    assert str(error) == told
    pauses, error = paused(BUSY, FULL)
    assert pauses == [0.1] and type(error) is PoolFull and str(error) == "m; r"


def test_a_service_that_has_answered_before_is_given_time_to_restart():
    pauses, error = paused(*[BROKEN] * 19, has_answered=True)
    assert pauses == [0.1, 0.5, 2.0] + [2.0] * 15
    assert "ale-sandbox serve" in str(error)


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


@each_row(
    "host, is_sent",
    [
        ("127.0.0.1:8700", True),
        ("127.9.9.9", True),
        ("[::1]:8700", True),
        ("localhost:8700", True),
        ("10.0.0.1:8700", False),
        ("localhost.example:8700", False),
        ("127.0.0.1@sandboxes:8700", False),
        ("sandboxes:8700", False),
    ],
)
def test_a_token_leaves_this_machine_encrypted_only(host, is_sent):
    assert http_options(f"https://{host}", "t" * 16, tls_context("https://", True))
    assert http_options(f"http://{host}", "t" * 16, None, in_clear=True)
    if is_sent:
        assert http_options(f"http://{host}", "t" * 16, None)
        return
    with pytest.raises(ValueError, match="without encryption: use https"):
        http_options(f"http://{host}", "t" * 16, None)


def test_so_does_one_in_the_url():
    assert http_options("http://sandboxes", None, None)
    with pytest.raises(ValueError, match="without encryption") as error:
        http_options("http:" + "//me:secret@sandboxes", None, None)
    assert "secret" not in str(error.value)
