"""A port of a sandbox of the service is reached from its client's machine."""

import contextlib
import dataclasses
import socket
import urllib.request

import pytest

from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox
from ale_jax.sandbox.sdk.client import RemoteSandbox
from tests.sandbox.service.conftest import BOB
from tests.sandbox.upstream import STAYS

# Answers only when its client has no more to say, as many times as it has said something.
COUNTS = """
import socketserver
class Count(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"%d\\n" % len(self.rfile.read()))
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("127.0.0.1", {port}), Count).serve_forever()
"""


def serve(box, program, port):
    box.start_job("server", program)
    waits = f"until (exec 3<> /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.02; done"
    box.exec(waits, timeout=30)


def ask(port, data):
    """What comes back when `data` and then the end was sent."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_a_local_port_that_is_none_is_named(remote):
    refused = pytest.raises(ValueError, match=r"the local port 65536 must be 0\.\.65535")
    with refused, remote.forward(8000, 65536):
        pass


def test_a_server_inside_is_reached_while_the_block_lasts(remote):
    remote.write({"site/page": b"content\n" * 100_000})
    serve(remote, "python3 -m http.server --bind 127.0.0.1 --directory site 8000", 8000)
    with remote.forward(8000) as port:
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/page") as answer:
                assert answer.read() == b"content\n" * 100_000
        with pytest.raises(OSError, match="in use"), remote.forward(8000, port):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_program_is_answered_after_it_has_ended_its_side(remote):
    remote.write({"count.py": COUNTS.format(port=8001).encode()})
    serve(remote, "python3 count.py", 8001)
    with remote.forward(8001) as port:
        for size in (0, 5, 3_000_000):
            assert ask(port, b"x" * size) == b"%d\n" % size


def test_a_port_at_which_nobody_listens_closes_the_connection(remote, caplog):
    with remote.forward(8002) as port:
        assert ask(port, b"") == b""
    assert "port 8002 of the sandbox: Connection refused" in caplog.text


def test_a_connection_that_is_left_open_ends_with_the_block(remote):
    remote.write({"stay.py": STAYS.format(port=8003).encode()})
    serve(remote, "python3 stay.py", 8003)
    with contextlib.ExitStack() as stack:
        with remote.forward(8003) as port:
            left = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert left.recv(3) == b"hi\n"
        assert left.recv(1) == b""


def test_a_sandbox_of_anothers_or_nobodys_is_not_reached(real, remote, caplog):
    with real.client(BOB) as bob:
        for id in (remote.id, "nobody"):
            status = dataclasses.replace(remote.status(), id=id)
            box = RemoteSandbox(AsyncRemoteSandbox(bob.later, status))
            with box.forward(8004) as port:
                assert ask(port, b"") == b""
            assert f"there is no sandbox '{id}'" in caplog.text
            with pytest.raises(SandboxGone):
                box.status()


def test_a_port_that_no_program_can_have_is_refused(remote):
    with pytest.raises(ValueError, match="port 70000 must be from 1 to 65535"):
        remote.later.forward(70_000)
