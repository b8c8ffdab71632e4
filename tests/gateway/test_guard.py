"""Who may call the gateway, how often and how slowly, and what is read of those who may not."""

import contextlib
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.metrics import HEALTH
from ale_jax.gateway.requests import ApiError
from ale_jax.gateway.server import _listener, served

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Busy:
    """An episode that must not be asked anything."""

    def end(self, choice):
        return []


@pytest.fixture
def episodes():
    return Episodes()


@pytest.fixture
def url(episodes):
    with served(make_app(episodes, "policy")) as url:
        yield url


def begin_post(url, token, length):
    """A connection that has announced a body of this length, and sent none of it."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    head = (
        f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_a_stranger_is_refused_before_anything_is_read(url, token):
    with begin_post(url, token, 1 << 30) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/messages/count_tokens"])
def test_an_ended_episode_is_refused_whatever_the_body(url, episodes, path):
    token = episodes.open(Busy())
    episodes.end(token, "all")
    found = httpx.post(f"{url}{path}", content=b"{", headers={"x-api-key": token})
    assert found.status_code == 410
    assert found.json()["error"]["message"] == "the episode has ended"
    assert ("type" in found.json()) == path.startswith("/messages"), "in the shape of its API"


def test_a_body_that_is_too_long_is_refused(url, episodes, monkeypatch):
    monkeypatch.setattr("ale_jax.gateway.episodes.MAX_BODY_BYTES", 1000)
    headers = {"Authorization": f"Bearer {episodes.open(Busy())}"}
    body = BODY | {"user": "x" * 1000}
    found = httpx.post(f"{url}/chat/completions", json=body, headers=headers)
    assert (found.status_code, found.json()["error"]["code"]) == (413, 413)


def test_a_body_that_does_not_come_is_not_waited_for(url, episodes, monkeypatch):
    monkeypatch.setattr("ale_jax.gateway.episodes.BODY_S", 0.2)
    with begin_post(url, episodes.open(Busy()), 100) as connection:
        connection.sendall(b"{")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_connection_without_a_request_is_closed(url, monkeypatch, sent):
    monkeypatch.setattr("ale_jax.gateway.server.HEADERS_S", 0.2)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_a_connection_may_be_silent_between_two_requests(url, monkeypatch):
    monkeypatch.setattr("ale_jax.gateway.server.HEADERS_S", 0.2)
    address = urlsplit(url)
    asked = f"GET {HEALTH} HTTP/1.1\r\nHost: x\r\nX: {'x' * 30_000}\r\n\r\n".encode()
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        for _ in range(3):  # more than may be in the headers of one
            connection.sendall(asked)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)


@pytest.mark.parametrize("sent", [b"\r\n", b"GET"])
def test_what_begins_no_further_request_does_not_keep_a_connection(url, monkeypatch, sent):
    monkeypatch.setattr("ale_jax.gateway.server.HEADERS_S", 0.2)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(f"GET {HEALTH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_a_body_that_comes_after_its_refusal_is_no_header(url, monkeypatch):
    monkeypatch.setattr("ale_jax.gateway.server.HEADERS_S", 0.2)
    body = b"x" * (1 << 18)
    with begin_post(url, "wrong", len(body)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")
        connection.sendall(body)
        time.sleep(0.5)
        connection.sendall(f"GET {HEALTH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_headers_without_end_are_refused(url):
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\n")
        answer = b""
        with contextlib.suppress(OSError):  # the server has closed it
            for number in range(1000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"x" * 1000))
        with contextlib.suppress(OSError):
            answer = connection.recv(100)
        assert answer.startswith(b"HTTP/1.1 400") or number < 999


def test_one_episode_cannot_have_all_calls():
    episodes = Episodes(most_calls=2)
    greedy, other = episodes.open(Busy()), episodes.open(Busy())
    with episodes.admitted(greedy), episodes.admitted(greedy):
        with pytest.raises(ApiError, match="2 calls to answer") as refused:
            episodes.admitted(greedy).__enter__()
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
        with episodes.admitted(other):
            pass
    with episodes.admitted(greedy):
        pass
    assert not episodes._calls, "nothing is kept of ended calls"


def test_answers_are_sent_at_once():
    """asyncio turns Nagle's algorithm off for sockets of this protocol."""
    with _listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
