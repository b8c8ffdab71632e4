"""Requests that come twice, too many at once, or over connections that break."""

import asyncio
import socket
import threading
import time

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import PoolFull
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.service.conftest import BOB

SPEC = SandboxSpec()
RUN = "/v1/sandboxes/box-0/run"


@pytest.fixture(autouse=True)
def box(memory):
    with memory.client() as client:
        yield client.start(SPEC)


def post(http, id, command="x"):
    return http.post(RUN, json={"command": command}, headers={"X-Request-Id": id})


def test_the_same_request_is_carried_out_once(memory, http):
    count = iter(range(9))
    memory.pool.answers["run"] = lambda id, arguments: {"number": next(count)}
    first, again, other = post(http, "a"), post(http, "a"), post(http, "b")
    assert first.json() == again.json() == {"number": 0} and other.json() == {"number": 1}
    assert again.headers["x-request-id"] == "a"
    with memory.http(BOB) as bob:  # another's id is another's
        assert post(bob, "a").status_code == 404


def test_an_id_stands_for_one_request(memory, http):
    assert post(http, "a").status_code == 200
    assert post(http, "a", "y").status_code == 409
    reset = http.post("/v1/sandboxes/box-0/reset", headers={"X-Request-Id": "a"})
    assert reset.json()["error"]["kind"] == "request_id_reused"
    assert len(memory.pool.calls) == 1


@pytest.mark.parametrize("id", ["", "a b", "x" * 129, "ä"])
def test_an_id_of_a_request_is_short_and_plain(http, id):
    answer = http.post(RUN, json={"command": "x"}, headers=[(b"X-Request-Id", id.encode())])
    assert answer.status_code == 400


def test_errors_are_kept_too_unless_nothing_was_done(memory, http):
    memory.pool.answers["run"] = SandboxError("no")
    assert post(http, "a").status_code == 409
    memory.pool.answers["run"] = PoolFull("no slot")
    assert post(http, "b").status_code == 503
    memory.pool.answers["run"] = {}
    assert (post(http, "a").status_code, post(http, "b").status_code) == (409, 200)


def test_a_repeat_waits_for_the_first(memory, http):
    held(memory)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(post(http, "a").text)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    while not memory.pool.calls:
        time.sleep(0.01)
    release(memory)
    for thread in threads:
        thread.join()
    assert len(memory.pool.calls) == 1 and len(set(answers)) == 1 and len(answers) == 2


def test_an_id_stands_for_one_request_also_while_that_is_in_progress(memory, http):
    held(memory)
    first = threading.Thread(target=post, args=(http, "a"))
    first.start()
    while not memory.pool.calls:
        time.sleep(0.01)
    assert post(http, "a", "y").status_code == 409
    release(memory)
    first.join()
    assert len(memory.pool.calls) == 1


def held(memory):
    memory.pool.gate = asyncio.Event()


def release(memory):
    gate, memory.pool.gate = memory.pool.gate, None
    gate._loop.call_soon_threadsafe(gate.set)


def test_a_client_says_it_again_when_the_connection_breaks(memory):
    with cutting_relay(memory.url, cuts=2) as (url, seen):
        with type(memory)(url, memory.pool).client() as client:
            client.start(SPEC)
    assert len(seen) == 3  # connections: two that were cut, and one that was not
    assert len(memory.pool.members) == 1 + 1  # that of the fixture, and one more


class cutting_relay:
    """Passes bytes on, but cuts the first `cuts` connections when their answer begins."""

    def __init__(self, url, cuts):
        host, port = url.removeprefix("http://").split(":")
        self._to, self._cuts, self._seen = (host, int(port)), cuts, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets, self._threads = [], []

    def __enter__(self):
        self._start(self._accept)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}", self._seen

    def __exit__(self, *exc):
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, *call):
        self._threads.append(threading.Thread(target=call[0], args=call[1:], daemon=True))
        self._threads[-1].start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._seen.append(near)
            far = socket.create_connection(self._to)
            self._sockets += [near, far]
            self._start(self._pass, near, far, False)
            self._start(self._pass, far, near, len(self._seen) <= self._cuts)

    def _pass(self, source, target, cut):
        try:
            while (data := source.recv(65536)) and not cut:
                target.sendall(data)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other direction ended first
