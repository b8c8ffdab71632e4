"""Attacks through a relay on what it leads to, and on the process that carries it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

from ale_jax.sandbox.relay import CONNECTIONS
from benchmarks.sandbox.attacks.attack import Arena, Attack, require

RELAYS = "relays"
PORT = 8900  # inside
TRIED = 4 * CONNECTIONS
GROWTH_MB = 150  # windows and buffers of CONNECTIONS: 74 to 98, and 233 to 281 without the door
REPLY = memoryview(bytes(4 << 20))
FILLED_S = 20.0
# Opens many connections, asks through each, and reads nothing.
HOLD = f"""
import socket, time
held = []
for _ in range({TRIED // 4}):
    held.append(socket.create_connection(("127.0.0.1", {PORT}), 5))
    held[-1].sendall(b"?")
print("held", flush=True)
time.sleep(60)
"""
ASK = f"""
import socket
asked = socket.create_connection(("127.0.0.1", {PORT}), 20)
asked.sendall(b"?")
print(len(asked.recv(1)))
"""


class Server:
    """Answers REPLY to whatever each connection says first, as far as it is read.

    port: of the loopback. most: connections at a time so far.
    """

    def __init__(self) -> None:
        self.most = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * TRIED)
        self.port = self._listener.getsockname()[1]
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="server")
        self._thread.start()

    def close(self) -> None:
        self._leaving.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        sent: dict[socket.socket, int] = {}
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._leaving.is_set():
                for key, _ in ready.select(0.05):
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        connection.setblocking(False)
                        # Or the kernel takes the whole reply, and the connection is over.
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
                        sent[connection] = 0
                        ready.register(connection, selectors.EVENT_READ)
                        self.most = max(self.most, len(sent))
                    elif not _answer(ready, key.fileobj, sent):
                        ready.unregister(key.fileobj)
                        del sent[key.fileobj]
                        key.fileobj.close()
        for connection in sent:
            connection.close()


def _answer(ready: selectors.BaseSelector, connection: socket.socket, sent: dict) -> bool:
    """Reads the question, or sends a further part of the reply. Returns whether it goes on."""
    try:
        if sent[connection] == 0 and not connection.recv(1):
            return False
        sent[connection] += connection.send(REPLY[sent[connection] :])
    except BlockingIOError:
        return True
    except OSError:
        return False
    ready.modify(connection, selectors.EVENT_WRITE)
    return sent[connection] < len(REPLY)


@contextlib.contextmanager
def _flooded(arena: Arena) -> Iterator[tuple[Server, int]]:
    """A server that the arena's sandbox floods through a relay, and how many MB this process has
    allocated meanwhile."""
    with (
        _allocated() as megabytes,
        contextlib.closing(Server()) as server,
        arena.box.relay(PORT, "127.0.0.1", server.port),
    ):
        arena.box.write({"hold.py": HOLD.encode()})
        holders = "for i in 1 2 3 4; do python3 -u hold.py >> out 2>&1 & done"
        waits = "until [ $(grep -c . out) -ge 4 ]; do sleep 0.05; done; sleep 1"
        done = arena.box.run(f"touch out; {holders}; {waits}", timeout=30.0)
        require(not done.timed_out, "could not be tried")
        yield server, megabytes()
        arena.box.kill_processes()


@contextlib.contextmanager
def _allocated() -> Iterator[Callable[[], int]]:
    """How many MB of new Python objects there were at most. The process's resident
    memory would not tell: it also grows by pages that had been reclaimed, and that others touch."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] >> 20
    finally:
        tracemalloc.stop()


def _takes_all_connections(arena: Arena) -> str:
    with arena.another() as other, _flooded(arena) as (server, _):
        with other.relay(PORT, "127.0.0.1", server.port):
            answer = other.run(f"python3 -c '{ASK}'", timeout=10.0).output
        require(answer == "1\n", f"another sandbox reads {answer.strip()[-50:]!r}")
        deadline = time.monotonic() + FILLED_S
        while server.most < CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        most = server.most
    seen = f"{most} of {TRIED} connections at once"
    # With that of the other. On a busy machine some give up before their turn comes.
    return require(CONNECTIONS // 2 <= most <= CONNECTIONS + 1, seen)


def _takes_memory(arena: Arena) -> str:
    with _flooded(arena) as (_, grown):
        pass
    return require(grown <= GROWTH_MB, f"this process grows by {grown} MB")


ATTACKS = (
    Attack(
        "takes all connections of a service", RELAYS, "the relay's door", _takes_all_connections
    ),
    Attack("reads no reply of a service", RELAYS, "windows, and the door", _takes_memory),
)
