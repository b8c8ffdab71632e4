"""Who may call the gateway, and what is read of those who may not."""

import socket
from urllib.parse import urlsplit

import httpx
import pytest

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
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


def test_answers_are_sent_at_once():
    """asyncio turns Nagle's algorithm off for sockets of this protocol."""
    with _listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
