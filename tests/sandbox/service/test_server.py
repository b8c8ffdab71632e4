"""Connections that ask for nothing: they end, and never stand in the way of one that asks."""

import contextlib
import dataclasses
import resource
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ale_jax.sandbox.service import server
from ale_jax.sandbox.service.access import OPEN_PATHS
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.service.conftest import ANN, ROOT, SMALL, over_memory

pytestmark = pytest.mark.heavy

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
MANY = 1100


@pytest.fixture
def few(monkeypatch):
    """A service that has at most eight connections."""
    monkeypatch.setattr(server, "max_connections", lambda: 8)
    with over_memory() as service:
        yield service


@contextlib.contextmanager
def opened(service, count):
    """Connections, oldest first, which the service has accepted."""
    url = urlsplit(service.url)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=30))
            for _ in range(count)
        ]


def is_closed(sock) -> bool:
    """Waits until the service closes the connection or answers."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def answers(sock) -> bool:
    sock.sendall(REQUEST)
    return sock.recv(12) == b"HTTP/1.1 200"


def test_of_many_idle_connections_the_oldest_make_room(few):
    with opened(few, 20) as sockets:
        assert httpx.get(f"{few.url}/healthz").status_code == 200
        assert all(is_closed(sock) for sock in sockets[:12])
        assert answers(sockets[-1])


def test_a_connection_that_was_used_outlives_those_that_were_not(few):
    with opened(few, 1) as (used,):
        assert answers(used)
        while used.recv(4096)[-1:] != b"}":
            pass
        with opened(few, 20) as unused:
            assert is_closed(unused[0])
            assert answers(used)


def test_if_all_connections_are_busy_one_more_is_closed_and_none_of_them(monkeypatch):
    monkeypatch.setattr(server, "max_connections", lambda: 8)
    monkeypatch.setattr(server, "HEADER_S", 600.0)  # is not why it is closed
    half = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    token = f"Authorization: Bearer {ANN}\r\n\r\n".encode()
    with over_memory(dataclasses.replace(SMALL, body_seconds=1.0)) as service:
        with opened(service, 8) as busy:
            for sock in busy:
                sock.sendall(half + token)
            time.sleep(0.05)  # the bodies are awaited
            with opened(service, 1) as (one_more,):
                assert is_closed(one_more)
            assert all(sock.recv(12) == b"HTTP/1.1 408" for sock in busy)


@pytest.mark.parametrize("begin", [b"", REQUEST[:-2], REQUEST + REQUEST[:9]])
def test_a_header_that_does_not_come_is_not_waited_for(monkeypatch, begin):
    monkeypatch.setattr(server, "HEADER_S", 0.2)
    with over_memory() as service, opened(service, 1) as (sock,):
        sock.sendall(begin)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):  # until it is closed
                pass


def test_a_request_that_takes_long_is_not_a_late_header(monkeypatch):
    monkeypatch.setattr(server, "HEADER_S", 0.05)
    with over_memory() as service, service.client() as client:
        box = client.start(SandboxSpec())
        service.pool.answers["run"] = lambda id, arguments: time.sleep(0.2)
        with service.http() as http:
            answer = http.post(f"/v1/sandboxes/{box.id}/run", json={"command": "x"})
        assert answer.status_code == 200


def test_the_file_limit_is_raised_and_half_of_it_is_for_connections():
    program = (
        "import resource; from ale_jax.sandbox.service.server import *;"
        "print(max_connections(), raise_file_limit(), max_connections(),"
        " resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, preexec_fn=limit
    )
    assert done.stdout == "50 300 150 (300, 300)\n", done.stderr


def test_many_idle_connections_leave_the_service_usable():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with over_memory() as service, opened(service, MANY), service.client() as client:
            assert client.start(SandboxSpec()).run("true").output == "done\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bodies_that_never_come_do_not_keep_the_probes_from_answering():
    beginning = b"{} /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with over_memory() as service, opened(service, 6) as sockets:
        for sock, method in zip(sockets, (b"POST", b"GET", b"PUT") * 2, strict=True):
            sock.sendall(beginning.replace(b"{}", method))
        answered = [sock.recv(12) for sock in sockets]
        assert answered == [f"HTTP/1.1 {code}".encode() for code in (405, 200, 405) * 2]


def test_open_paths_take_no_calls_and_no_buffer_of_anybodys():
    with over_memory() as service, service.http(None) as http, service.client(ROOT) as root:
        for path in OPEN_PATHS:
            assert http.get(path).status_code == 200
        assert http.post("/docs", content=b"x" * 1000).status_code == 405
        url = service.url.replace("http", "ws") + "/healthz"
        with pytest.raises(InvalidStatus, match="403"), connect(url):
            pass
        assert [each.tenant for each in root.usage()] == ["root"]
        with service.http(ROOT) as http:
            assert 'tenant=""' not in http.get("/metrics").text
