"""Programs in a sandbox of the service reach what its client reaches, and nothing else."""

import asyncio
import contextlib
import dataclasses
import json
import time

import pytest
from websockets.sync.client import connect

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.relay import CONNECTIONS
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.client import RemoteSandbox
from tests.rows import each_row
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB
from tests.sandbox.upstream import CALL, CLIENT, MANY_CLIENTS, upstream

HOST = "127.0.0.1"


def test_a_program_inside_reaches_what_the_client_reaches_until_the_block_ends(remote):
    with upstream("hello\n") as port:
        with remote.relay(4000, HOST, port):
            assert remote.run(CALL).output == "hello\nmore\n"
            with pytest.raises(SandboxError, match="4000 is in use"), remote.relay(4000, HOST, 9):
                pass
            remote.run("exec 5<> /dev/tcp/127.0.0.1/4000; read -u 5 line")
        assert remote.run("cat <&5; echo $line", timeout=10).output == "hello\n"
        assert "refused" in remote.run("exec 4<> /dev/tcp/127.0.0.1/4000").output
        with remote.relay(4000, HOST, port):
            assert remote.run(CALL).output == "hello\nmore\n"


def test_megabytes_and_more_connections_than_there_may_be_at_a_time(remote):
    many = MANY_CLIENTS.format(port=4000, together=CONNECTIONS + 10)
    megabytes = CLIENT.format(port=4000, size=3 << 20)
    remote.write({"many.py": many.encode(), "megabytes.py": megabytes.encode()})
    with upstream("") as port, remote.relay(4000, HOST, port):
        done = remote.exec("python3 many.py", timeout=20)
        assert done.stdout == f"{CONNECTIONS + 10}\n", done
        both = remote.exec("for i in 1 2; do python3 megabytes.py & done; wait", timeout=20)
        assert both.stdout == f"{3 << 20}\n" * 2


@pytest.mark.heavy
def test_each_sandbox_has_its_own(real, remote):
    with upstream("one\n") as one, upstream("two\n") as two, real.client() as client:
        with client.start(SPEC) as other, remote.relay(4000, HOST, one):
            assert "refused" in other.run("exec 3<> /dev/tcp/127.0.0.1/4000").output
            with other.relay(4000, HOST, two):
                assert remote.run(CALL).output == "one\nmore\n"
                assert other.run(CALL).output == "two\nmore\n"


def test_nobody_relays_for_a_sandbox_that_is_not_theirs(real, remote):
    with real.client(BOB) as bob:
        for id in (remote.id, "nobody"):
            box = RemoteSandbox(
                AsyncRemoteSandbox(bob.later, dataclasses.replace(remote.status(), id=id))
            )
            with pytest.raises(SandboxGone), box.relay(4000, HOST, 9):
                pass
    assert "refused" in remote.run("exec 3<> /dev/tcp/127.0.0.1/4000").output


@pytest.mark.heavy
def test_the_end_of_the_sandbox_is_told_at_the_end_of_the_block(real):
    with real.client() as client, client.start(SPEC) as box:
        with pytest.raises(SandboxGone), box.relay(4000, HOST, 9), raw(real, box, 4001) as other:
            box.close()
            told = json.loads(other.recv(timeout=10))
            assert told["error"]["cause"] == "stopped"
            time.sleep(0.5)  # the relay's own connection is told at the same time


@contextlib.contextmanager
def raw(real, box, port=4000):
    """The WebSocket of a relay, whose far end is the test."""
    url = f"ws{real.url.removeprefix('http')}/v1/sandboxes/{box.id}/relay?port={port}"
    headers = {"Authorization": f"Bearer {ANN}"}
    with connect(url, additional_headers=headers, proxy=None) as connection:
        assert json.loads(connection.recv()) == {"open": True}
        yield connection


TALK = "exec 3<> /dev/tcp/127.0.0.1/4000; printf hello >&3"


@each_row(
    "answer",
    [
        b"\0" * 100,
        wire.json_frame(wire.OPEN, 2, {}),  # a far end opens nothing
        wire.credit_frame(1, 1 << 31),  # so that more and more would wait for it
        wire.frame(wire.DATA, 3, b"x"),
    ],
    ids=str,
)
def test_a_client_that_breaks_the_protocol_loses_its_relay_not_its_sandbox(real, remote, answer):
    with raw(real, remote) as connection:
        remote.run(TALK)
        assert b"hello" in _until(connection, b"hello")
        connection.send(answer)
        while isinstance(last := connection.recv(timeout=10), bytes):
            pass
        assert json.loads(last)["error"]["kind"] == "invalid"
    assert remote.run("cat <&3; echo lives", timeout=10).output == "lives\n"


def test_a_client_that_hangs_up_ends_the_connections_inside(real, remote):
    with raw(real, remote) as connection:
        remote.run(TALK)
        assert b"hello" in _until(connection, b"hello")
        connection.socket.close()  # without a goodbye
    assert remote.run("cat <&3; echo over", timeout=10).output == "over\n"


@pytest.mark.heavy
def test_the_asynchronous_twin_relays(real):
    async def use(port):
        async with AsyncSandboxClient(real.url, ANN) as client, client.start(SPEC) as box:
            async with box.relay(4000, HOST, port):
                assert (await box.run(CALL)).output == "hello\nmore\n"

    with upstream("hello\n") as port:
        asyncio.run(use(port))


def _until(connection, text):
    got = b""
    while text not in got:
        got += connection.recv(timeout=10)
    return got
