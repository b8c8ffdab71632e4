"""The host's end of the connection, against a far end that does as it likes."""

import asyncio
import json
import os
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.link import DockerLink, Link
from ale_jax.sandbox.runner import wire
from tests.rows import each_row


class Wire:
    """Stands in for the transport: keeps what is written."""

    def __init__(self, far_end: socket.socket | None = None):
        self.far_end = far_end
        self.written = bytearray()
        self.aborted = False

    def write(self, data):
        self.written += data

    def get_extra_info(self, name):
        return {"socket": self.far_end}[name]

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True

    def frames(self):
        rest, frames = bytes(self.written), []
        while rest:
            size, number, kind = wire.HEAD.unpack_from(rest)
            frames.append((number, kind, rest[wire.HEAD.size : wire.HEAD.size + size]))
            rest = rest[wire.HEAD.size + size :]
        return frames


def _linked(link_class=Link):
    link, transport = link_class(), Wire()
    link.connection_made(transport)
    return link, transport


def run(test):
    return asyncio.run(asyncio.wait_for(test(), 20))


def _credits(transport):
    frames = transport.frames()
    return [struct.unpack(">I", payload)[0] for _, kind, payload in frames if kind == wire.CREDIT]


def test_data_comes_in_order_and_is_credited_when_taken():
    async def test():
        link, transport = _linked()
        stream = link.open({"do": "x"})
        for byte in (b"1", b"2"):
            link.data_received(wire.frame(wire.DATA, 1, byte * wire.CHUNK))
        assert len(transport.frames()) == 1  # the request: nothing is taken yet
        assert await stream.receive() == (wire.DATA, b"1" * wire.CHUNK)
        assert _credits(transport) == [wire.CHUNK]
        link.data_received(wire.json_frame(wire.END, 1, {"code": 3}))
        assert await stream.receive() == (wire.DATA, b"2" * wire.CHUNK)
        assert await stream.outcome() == {"code": 3}
        assert _credits(transport) == [wire.CHUNK]  # nobody waits for more

    run(test)


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_credit_for_single_bytes_goes_back_in_few_steps_and_never_too_late(is_abandoned):
    window = 1 << 12

    async def test():
        link, transport = _linked(lambda: Link(window=window))
        stream = link.open({"do": "x"})
        if is_abandoned:
            stream.abandon()
        for sent in range(0, 4 * window, 64):
            # The room that is left as the runner counts it.
            assert window + sum(_credits(transport)) - sent > window // 2
            link.data_received(wire.frame(wire.DATA, 1, b"x") * 64)
            while stream._inbox:
                await stream.receive()
        assert len(_credits(transport)) <= 4 * 4

    run(test)


def test_what_is_not_credited_counts_towards_the_window():
    async def test():
        link, transport = _linked()
        stream = link.open({"do": "x"})
        link.data_received(wire.frame(wire.DATA, 1, b"x"))
        await stream.receive()  # is too little for credit
        link.data_received(wire.frame(wire.DATA, 1, b"x" * wire.CHUNK) * 3)
        link.data_received(wire.frame(wire.DATA, 1, b"x" * (wire.CHUNK - 1)))
        assert not transport.aborted
        link.data_received(wire.frame(wire.DATA, 1, b"x"))
        with pytest.raises(SandboxLost, match="beyond the window"):
            link.check()

    run(test)


def _connections(count):
    """The opening and the end of as many connections, one after the other."""
    return b"".join(
        wire.json_frame(kind, number, {})
        for number in range(2, 2 + 2 * count, 2)
        for kind in (wire.OPEN, wire.END)
    )


async def _connected():
    """A link that ends each connection at once, over a socket, and the socket's other end."""
    ours, theirs = socket.socketpair()
    link = Link()
    link.accept = lambda stream, request: stream.end()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: link, ours)
    return link, theirs


def test_a_runner_that_sends_but_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr("ale_jax.sandbox.link.MAX_WAITING", 10_000)

    async def test():
        link, theirs = await _connected()
        link.data_received(_connections(20_000))
        with theirs, pytest.raises(SandboxLost, match="does not read: more than 10000 bytes wait"):
            link.check()
        assert not link._waiting

    run(test)


def test_what_waits_for_a_slow_runner_reaches_it_whole_and_in_order():
    async def test():
        link, theirs = await _connected()
        theirs.setblocking(False)
        link.data_received(_connections(10_000))
        link.open({"do": "last"})
        assert len(link._waiting) > 10_000  # more than socket and transport take
        loop, received = asyncio.get_running_loop(), bytearray()
        while not received.endswith(b'"last", "body": false}'):
            received += await loop.sock_recv(theirs, 1 << 20)
        ends = b"".join(wire.json_frame(wire.END, 2 + 2 * n, {}) for n in range(10_000))
        assert received.startswith(ends) and len(received) < len(ends) + 100
        assert not link._waiting
        link.fail("over")
        theirs.close()

    run(test)


def test_no_more_is_sent_than_there_is_room_for():
    async def test():
        link, transport = _linked()
        stream = link.open({"do": "x"}, body=True)
        sending = asyncio.ensure_future(stream.send(b"x" * (wire.WINDOW + 10)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent = sum(len(payload) for _, kind, payload in transport.frames() if kind == wire.DATA)
        assert sent == wire.WINDOW and not sending.done()
        link.data_received(wire.credit_frame(1, 100))
        await sending

    run(test)


@each_row(
    "frames",
    [
        wire.HEAD.pack(wire.CHUNK + 1, 1, wire.DATA),
        wire.HEAD.pack(wire.MAX_FRAME + 1, 1, wire.END),
        wire.HEAD.pack((1 << 32) - 1, 1, wire.END),
        wire.frame(wire.DATA, 1, b"x" * wire.CHUNK) * 5,
        wire.frame(wire.DATA, 1),
        wire.frame(wire.ERROR, 1),
        wire.frame(wire.DATA, 7, b"x"),
        wire.frame(99, 1, b""),
        wire.frame(wire.END, 1, b"[1]"),
        wire.frame(wire.END, 1, b"{"),
        wire.frame(wire.END, 1, b"[" * 100_000),
        wire.frame(wire.END, 1, b"\xff"),
        wire.frame(wire.CREDIT, 1, b"123"),
        wire.json_frame(wire.END, 1, {}) + wire.frame(wire.DATA, 1, b"late"),
        wire.json_frame(wire.OPEN, 2, {"do": "accept"}),  # nobody has asked for connections
        wire.json_frame(wire.END, 0, {}) * 2,
    ],
    ids=str,
)
def test_whoever_breaks_the_protocol_is_cut_off(frames):
    async def test():
        link, transport = _linked()
        stream = link.open({"do": "x"})
        link.data_received(frames)
        assert transport.aborted
        with pytest.raises(SandboxLost, match="broke the protocol"):
            link.open({"do": "y"})
        with pytest.raises(SandboxLost, match="broke the protocol"):
            while await stream.receive():
                pass
            raise SandboxLost("broke the protocol")  # the end had come before

    run(test)


def test_streams_of_the_far_end_are_bounded_and_numbered_evenly():
    async def test():
        link, transport = _linked()
        link.accept = lambda stream, request: None
        for number in range(2, 2 + 2 * 256, 2):
            link.data_received(wire.json_frame(wire.OPEN, number, {}))
        assert not transport.aborted
        link.data_received(wire.json_frame(wire.OPEN, 2 + 2 * 256, {}))
        assert transport.aborted
        odd, transport = _linked()
        odd.accept = lambda stream, request: None
        odd.data_received(wire.json_frame(wire.OPEN, 3, {}))
        assert transport.aborted

    run(test)


def test_nothing_is_kept_of_what_comes_after_the_end():
    async def test():
        link, _ = _linked()
        link.data_received(wire.frame(99, 1))
        kept = len(link._buffer)
        link.data_received(bytes(1 << 20))
        assert len(link._buffer) == kept

    run(test)


@pytest.mark.parametrize("end", ["eof", "lost"])
def test_whoever_waits_learns_that_the_far_end_is_gone(end):
    async def test():
        link, _ = _linked()
        stream = link.open({"do": "x"}, body=True)
        waiting = [
            asyncio.ensure_future(each)
            for each in (link.greeting(), stream.send(b"x" * (wire.WINDOW + 1)))
        ]
        receiving = asyncio.ensure_future(link.open({"do": "y"}).receive())
        await asyncio.sleep(0.01)
        link.eof_received() if end == "eof" else link.connection_lost(OSError("reset"))
        for each in (*waiting, receiving):
            with pytest.raises(SandboxLost, match=r"gone|reset"):
                await each

    run(test)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise_here(data):
    async def test():
        for link_class in (Link, DockerLink):
            link, _ = _linked(link_class)
            link.data_received(data)

    run(test)


def test_a_ping_is_answered_once_and_only_if_it_was_sent():
    async def test():
        link, transport = _linked()
        pinged = link.ping()
        assert transport.frames() == [(0, wire.PING, b"")] and not pinged.done()
        link.data_received(wire.frame(wire.PING, 0))
        await pinged
        lost = link.ping()
        link.fail("it died")
        with pytest.raises(SandboxLost, match="it died"):
            await lost
        link, _ = _linked()
        link.data_received(wire.frame(wire.PING, 0))
        with pytest.raises(SandboxLost, match="broke the protocol"):
            link.ping()

    run(test)


def test_who_takes_a_link_over_has_it_but_for_standard_error():
    async def test():
        link, attached = _linked(DockerLink)
        ours, theirs = socket.socketpair()  # this process is both ends
        direct, transport = link.direct(), Wire(ours)
        read_end, write_end = os.pipe()
        link.gates = [write_end]
        os.set_blocking(read_end, False)
        with ours, theirs:
            assert link.runner_pid == 0  # not visible
            direct.connection_made(transport)
            assert link.runner_pid == os.getpid()
            first, (gate,), _, _ = socket.recv_fds(theirs, 100, wire.MAX_GATES)
        os.write(gate, b"0")
        os.close(gate)
        assert (first, os.read(read_end, 9), os.read(read_end, 9)) == (wire.GATES, b"0", b"")
        os.close(read_end)
        stream = link.open({"do": "x"})
        assert not attached.written and len(transport.frames()) == 1
        frames = wire.frame(wire.DATA, 1, b"one")
        direct.data_received(frames[:5])
        direct.data_received(frames[5:])
        assert await stream.receive() == (wire.DATA, b"one")
        direct.pause_writing()
        link.open({"do": "y"})
        assert len(transport.frames()) == 1
        direct.resume_writing()
        assert len(transport.frames()) == 2
        link.data_received(struct.pack(">BxxxI", 2, 5) + b"noise")
        assert link.stderr == b"noise"
        direct.eof_received()
        assert attached.aborted and transport.aborted
        with pytest.raises(SandboxLost):
            link.check()

    run(test)


def test_gates_that_no_runner_took_are_closed():
    async def test():
        link, _ = _linked(DockerLink)
        read_end, write_end = os.pipe()
        link.gates = [write_end]
        os.set_blocking(read_end, False)
        link.fail("over")
        assert os.read(read_end, 1) == b""
        os.close(read_end)

    run(test)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.lists(st.integers(1, 60), min_size=1),
)
def test_frames_may_come_in_any_pieces(payloads, cuts):
    async def test():
        link, _ = _linked(DockerLink)
        stream = link.open({"do": "x"})
        frames = b"".join(wire.frame(wire.DATA, 1, p) for p in payloads)
        inner = frames + wire.frame(wire.END, 1, json.dumps({"n": 1}).encode())
        middle = len(inner) // 2
        raw = b"".join(
            struct.pack(">BxxxI", kind, len(part)) + part
            for kind, part in ((1, inner[:middle]), (2, b"noise"), (1, inner[middle:]))
        )
        at = 0
        while at < len(raw):
            for cut in cuts:
                link.data_received(raw[at : at + cut])
                at += cut
        got = []
        while (piece := await stream.receive()) is not None:
            got.append(piece[1])
        assert got == payloads
        assert await stream.outcome() == {"n": 1}
        assert link.stderr == b"noise"

    run(test)
