"""Connections in and out of a sandbox without a network."""

import asyncio

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.relay import CONNECTIONS
from ale_jax.sandbox.runner import wire
from tests.sandbox.upstream import CALL, CLIENT, MANY_CLIENTS, STAYS, upstream

pytestmark = pytest.mark.each_runtime

PORT = 3128


async def _echo(stream):
    while (piece := await stream.receive()) is not None:
        await stream.send(piece[1])


@pytest.fixture(scope="module")
def echoing(shared_box):
    """A sandbox whose port PORT is answered, outside, by an echo."""
    wait_for(shared_box.later.listen(PORT, _echo))
    return shared_box


def test_a_connection_goes_out_and_back(echoing):
    talk = f"exec 3<> /dev/tcp/127.0.0.1/{PORT}; echo hello >&3; head -n 1 <&3"
    assert echoing.run(talk).output == "hello\n"


def test_megabytes_in_both_directions(echoing):
    echoing.write({"client.py": CLIENT.format(port=PORT, size=5 << 20).encode()})
    assert echoing.exec("python3 client.py").stdout == f"{5 << 20}\n"


def test_many_connections_at_once(echoing):
    echoing.write({"client.py": CLIENT.format(port=PORT, size=1 << 18).encode()})
    result = echoing.exec("for i in 1 2 3 4 5 6; do python3 client.py & done; wait")
    assert result.stdout == f"{1 << 18}\n" * 6


@pytest.mark.heavy
def test_no_more_connections_reach_the_outside_than_a_door_lets_in(own_box):
    together, most, are_there = 0, 0, asyncio.Event()

    async def serve(stream):
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together >= CONNECTIONS:
            are_there.set()
        await are_there.wait()  # however slowly they come, none ends before
        await _echo(stream)
        together -= 1

    wait_for(own_box.later.listen(PORT + 1, serve))
    source = MANY_CLIENTS.format(port=PORT + 1, together=CONNECTIONS + 30)
    own_box.write({"many.py": source.encode()})
    assert own_box.exec("python3 many.py").stdout == f"{CONNECTIONS + 30}\n"
    assert most == CONNECTIONS


def test_connections_beyond_the_limit_wait_for_the_others_to_end(echoing):
    # The kernel completes connections that the runner has not accepted, up to its backlog.
    source = MANY_CLIENTS.format(port=PORT, together=wire.MAX_STREAMS + 30)
    echoing.write({"many.py": source.encode()})
    assert echoing.exec("python3 many.py").stdout == f"{wire.MAX_STREAMS + 30}\n"


def test_a_client_that_hangs_up_is_forgotten(echoing):
    for _ in range(20):
        echoing.run(f"exec 3<> /dev/tcp/127.0.0.1/{PORT}; echo x >&3; exec 3>&-")
    link = echoing.later._machine.link

    async def settled():
        while link._streams:
            await asyncio.sleep(0.01)

    wait_for(asyncio.wait_for(settled(), 10))


def test_a_service_inside_is_called_from_outside(box):
    box.run("mkdir site; echo content > site/page")
    serve = "python3 -m http.server --bind 127.0.0.1 --directory site 8000 &> log &"
    box.run(f"{serve} until (exec 3<> /dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.05; done")

    async def fetch():
        stream = await box.later.connect(8000)
        await stream.send(b"GET /page HTTP/1.0\r\n\r\n")
        answer = b""
        while (piece := await stream.receive()) is not None:
            answer += piece[1]
        stream.end()
        return answer

    assert wait_for(fetch()).endswith(b"\r\n\r\ncontent\n")


def test_a_connection_is_over_with_its_block_whatever_the_program_does(box):
    box.write({"stay.py": STAYS.format(port=8000).encode()})
    box.start_job("server", "python3 stay.py")
    link = box.later.machine.link

    async def greeted():
        async with box.later.connected(8000) as connection:
            return await connection.receive()

    async def settled():
        while len(link._streams) > 1:  # that of the job
            await asyncio.sleep(0.01)

    while wait_for(greeted()) is None:
        pass
    assert wait_for(greeted()) == ("stdout", b"hi\n")
    wait_for(asyncio.wait_for(settled(), 10))


def test_a_port_that_nobody_serves(box):
    async def call():
        return await (await box.later.connect(4444)).outcome()

    assert "refused" in wait_for(call())["error"]


def test_only_what_listens_reaches_out(box):
    assert box.run("exec 3<> /dev/tcp/127.0.0.1/3129").exit_code == 1


def test_a_program_inside_reaches_one_address_outside(shared_box):
    with upstream("hello\n") as port, shared_box.relay(4000, "127.0.0.1", port):
        assert shared_box.run(CALL).output == "hello\nmore\n"
        # The host's own ports stay out of reach.
        assert shared_box.run(f"exec 3<> /dev/tcp/127.0.0.1/{port}").exit_code != 0
        with pytest.raises(SandboxError, match="4000 is in use"):
            shared_box.relay(4000, "127.0.0.1", port).__enter__()
    with upstream("another\n") as port, shared_box.relay(4000, "127.0.0.1", port):
        shared_box.reset()
        assert shared_box.run(CALL).output == "another\nmore\n"


def test_the_end_of_a_relay_cuts_its_connections_and_frees_its_port(shared_box):
    with upstream("hello\n") as port:
        with shared_box.relay(4000, "127.0.0.1", port):
            shared_box.run("exec 3<> /dev/tcp/127.0.0.1/4000; read -u 3 line")
        assert shared_box.run("cat <&3; echo $line", timeout=10).output == "hello\n"
        assert "refused" in shared_box.run("exec 4<> /dev/tcp/127.0.0.1/4000").output


def test_megabytes_go_through(shared_box):
    with upstream("") as port, shared_box.relay(4000, "127.0.0.1", port):
        shared_box.write({"client.py": CLIENT.format(port=4000, size=5 << 20).encode()})
        assert shared_box.exec("python3 client.py").stdout == f"{5 << 20}\n"


def test_where_nothing_answers_the_connection_ends(shared_box):
    with upstream("") as port:
        pass
    with shared_box.relay(4000, "127.0.0.1", port):
        assert shared_box.exec("cat < /dev/tcp/127.0.0.1/4000", timeout=20).timed_out is False


def test_a_port_that_a_program_inside_has_cannot_be_taken(shared_box):
    listen = "import socket; s = socket.create_server(('127.0.0.1', 4001)); s.accept()"
    # The first client only shows that it listens.
    listen = listen.replace("s.accept()", "s.accept(); s.accept()")
    shared_box.run(f'python3 -c "{listen}" & until : > /dev/tcp/127.0.0.1/4001; do sleep 0.1; done')
    relay = lambda: shared_box.relay(4001, "127.0.0.1", 9)  # noqa: E731
    with pytest.raises(SandboxError, match="in use"):
        relay().__enter__()
    shared_box.reset()
    with relay():
        pass
