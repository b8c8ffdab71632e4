"""Endpoints that are busy, broken or hostile. The gateway is elsewhere the one that is well."""

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ale_jax.agent.assistant import endpoint as module
from ale_jax.agent.assistant.endpoint import Endpoint, EndpointError, EndpointSettings
from ale_jax.agent.assistant.messages import AssistantCall, Usage
from tests.rows import each_row


@contextlib.contextmanager
def server(*answers):
    """Answers each call with the next: status, headers, body. Yields its URL and what it got."""
    left, got = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, headers, body = left.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", got
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def ask(url, **settings):
    async def see(part, text):
        pass

    async def once():
        async with Endpoint(EndpointSettings(url, "m", **settings)) as endpoint:
            return await endpoint.reply([{"role": "user", "content": "a\ud800"}], [], see)

    return asyncio.run(once())


def events(*chunks, done=True):
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return 200, {}, "".join([": comment\n", *lines, "data: [DONE]\n\n" if done else ""]).encode()


def delta(finish=None, **fields):
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def call(index, **fields):
    return delta(tool_calls=[{"index": index, **fields}])


def test_a_reply_is_put_together_from_its_pieces():
    answer = events(
        delta(role="assistant", content="I "),
        delta(content="look.", reasoning_content="so"),
        call(1, id="b", function={"name": "read", "arguments": ""}),
        call(0, id="a", function={"name": "bash", "arguments": '{"comm'}),
        call(0, function={"arguments": 'and": "ls"}'}),
        delta("tool_calls"),
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 5},
            },
        },
    )
    with server(answer) as (url, got):
        reply = ask(url, max_tokens=9)
    assert (reply.content, reply.reasoning, reply.stop) == ("I look.", "so", "tool_calls")
    assert reply.calls == (
        AssistantCall("a", "bash", '{"command": "ls"}'),
        AssistantCall("b", "read", ""),
    )
    assert reply.usage == Usage(7, 3, 5)
    (body,) = got
    assert body["stream"] and body["max_tokens"] == 9 and "tools" not in body
    assert body["messages"][0]["content"] == "a?", "a lone surrogate is no UTF-8"


def test_a_busy_endpoint_is_asked_again_and_another_error_is_not():
    busy = 429, {"Retry-After": "0"}, b""
    with server(busy, busy, events(delta("stop", content="Yes."))) as (url, got):
        assert ask(url).content == "Yes." and len(got) == 3
    with server(busy, busy) as (url, got), pytest.raises(EndpointError, match="refused"):
        ask(url, attempts=2)
    wrong = 400, {}, b'{"error": {"message": "too long"}}'
    with server(wrong) as (url, got), pytest.raises(EndpointError, match=r"\(400\): too long"):
        ask(url)


@each_row(
    "answer, reason",
    [
        (events(delta(content="I lo"), done=False), "broken off"),
        (events({"error": {"message": "no memory"}}), "broken off: no memory"),
        ((200, {}, b"data: {not JSON\n\n"), "no valid reply"),
        (events([]), "no valid reply"),
        (events({"usage": {"prompt_tokens": float("inf")}}), "no valid reply"),
        (events(delta(content=3)), "no valid reply"),
        (events({"choices": 3}), "no valid reply"),
        (events(call(0, id="x" * 300)), "no valid reply"),
        (events(*(call(n) for n in range(65))), "more than 64 calls"),
        (events(delta(content="x" * (1 << 18) + "y")), "characters"),
        ((200, {}, b"<html>"), "broken off"),
    ],
)
def test_what_is_no_reply_is_an_error(answer, reason):
    with server(answer) as (url, _), pytest.raises(EndpointError, match=reason):
        ask(url)


def test_a_reply_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1000)
    with server((200, {}, b"data: " + b"x" * 2000)) as (url, _):
        with pytest.raises(EndpointError, match="longer than 1000 bytes"):
            ask(url)


def test_an_endpoint_that_is_not_there_is_named_with_the_option():
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:1/v1.*check --base-url"):
        ask("http://127.0.0.1:1/v1", attempts=1)


@each_row("fields", [{"base_url": "a"}, {"model": ""}, {"attempts": 0}, {"seconds": 0}])
def test_settings_that_are_not_valid_are_refused_by_name(fields):
    (fields,) = [fields] if isinstance(fields, dict) else fields
    with pytest.raises(ValueError, match=next(iter(fields))):
        EndpointSettings(**({"base_url": "http://localhost", "model": "m"} | fields))


def test_the_key_is_not_shown():
    assert "secret" not in repr(EndpointSettings("http://localhost", "m", "secret"))
