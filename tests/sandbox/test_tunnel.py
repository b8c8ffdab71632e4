"""The ends of a tunnel: what may be on its way, and what an end that does as it likes achieves."""

import asyncio

import pytest

from ale_jax.sandbox.link import Link
from ale_jax.sandbox.relay import CONNECTIONS, MAX_LEAVING, WINDOW, Dialer, Door, Tunnel
from ale_jax.sandbox.runner import wire
from tests.sandbox.test_link import Wire, run

HEADS = 64 * CONNECTIONS  # bytes of frames without data


def sandbox(connections, tunnel):
    """The link to a sandbox with that many connections, which a tunnel serves."""
    link, door = Link(), Door(tunnel.serve)
    link.connection_made(Wire())
    link.accept = lambda stream, _: door.enter(stream)
    for number in range(2, 2 + 2 * connections, 2):
        link.data_received(wire.json_frame(wire.OPEN, number, {}))
        link.data_received(wire.frame(wire.DATA, number, b"x" * wire.CHUNK) * 4)
    return link, door


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


def test_what_nobody_takes_is_bounded_however_much_a_sandbox_sends():
    async def test():
        tunnel = Tunnel()
        _, door = sandbox(wire.MAX_STREAMS, tunnel)
        await settle()
        size = 0
        while tunnel._leaving._data:
            _, piece = await tunnel.receive()
            size += len(piece)
        assert CONNECTIONS * WINDOW <= size <= CONNECTIONS * WINDOW + HEADS
        door.close()

    run(test)


def test_a_far_end_that_sends_more_than_the_window_is_cut_off():
    async def test():
        tunnel = Tunnel()
        link, door = sandbox(1, tunnel)
        link._streams[2]._room = 0  # the program inside does not read
        await settle()
        for _ in range(2):  # one that waits for the program, and one in the window
            await tunnel.write(wire.frame(wire.DATA, 1, b"y" * WINDOW))
            await settle()
        with pytest.raises(ValueError, match="beyond the window"):
            await tunnel.write(wire.frame(wire.DATA, 1, b"y"))
            await tunnel.receive()
        door.close()

    run(test)


async def _swallow(stream):
    while await stream.receive():
        pass


def _many(number):
    """Connections that end at once, of which each end goes back."""
    return b"".join(
        wire.json_frame(kind, each, {})
        for each in range(3 + 400 * number, 403 + 400 * number, 2)
        for kind in (wire.OPEN, wire.END)
    )


def test_a_far_end_that_sends_but_does_not_read_is_cut_off(monkeypatch):
    most = MAX_LEAVING >> 8
    monkeypatch.setattr("ale_jax.sandbox.relay.MAX_LEAVING", most)

    async def test():
        dialer = Dialer(_swallow)
        await dialer.write(wire.json_frame(wire.OPEN, 1, {}))
        with pytest.raises(ValueError, match=f"more than {most} bytes wait"):
            for number in range(20):
                await dialer.write(_many(number))
                await settle()
                assert len(dialer._leaving._data) <= most
        with pytest.raises(ValueError, match="bytes wait"):
            await dialer.write(_many(20))
        assert not dialer._leaving._data and len(dialer._link._buffer) < wire.CHUNK
        dialer.close()

    run(test)


def test_both_ends_together_carry_everything_in_both_directions():
    async def test():
        async def echo(stream):
            while (piece := await stream.receive()) is not None:
                await stream.send(piece[1])

        tunnel, dialer = Tunnel(), Dialer(echo)

        async def carry(source, target):
            while True:
                _, data = await source.receive()
                await target.write(data[:1])
                await target.write(data[1:])

        carrying = [
            asyncio.create_task(carry(*each)) for each in ((tunnel, dialer), (dialer, tunnel))
        ]
        link, door = sandbox(3, tunnel)
        for number in (2, 4, 6):
            link.data_received(wire.json_frame(wire.END, number, {}))
        streams = [link._streams[number] for number in (2, 4, 6)]
        while link._streams:
            await asyncio.sleep(0)
        sent = [f for f in link._transport.frames() if f[1] == wire.DATA]
        for number in (2, 4, 6):
            assert b"".join(data for n, _, data in sent if n == number) == b"x" * 4 * wire.CHUNK
        assert all(stream._outcome == {} for stream in streams)
        for task in carrying:
            task.cancel()
        tunnel.close()
        dialer.close()
        door.close()

    run(test)
