"""Input of a terminal whose command does not read it."""

import asyncio
from unittest import mock

import pytest

from ale_jax.sandbox.service import terminal
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.terminal import MAX_BYTES, _attend, _Unread
from tests.rows import each_row
from tests.sandbox.pool.fakes import in_a_loop


class Typing:
    """A client that sends one frame after the other. sent: how many."""

    def __init__(self, frame):
        self.frame, self.sent = frame, 0

    async def receive(self):
        await asyncio.sleep(0)
        self.sent += 1
        return {"type": "websocket.receive", **self.frame}


class Deaf:
    """A command that never reads, writes or ends."""

    async def receive(self):
        await asyncio.Event().wait()

    write = resize = lambda self, *_: self.receive()


@each_row(
    "frame, on_pipes, most",
    [  # and one more, which the command has and does not read
        ({"bytes": b"x" * (64 << 10)}, False, 8),
        ({"bytes": b"x" * (64 << 10)}, True, 8),
        ({"bytes": b"x" * (32 << 10)}, True, 16),  # as many as the client sends ahead
        ({"bytes": b"x"}, False, 256),
        ({"text": '{"resize": [1, 2]}' + " " * (64 << 10)}, False, 7),
    ],
)
@in_a_loop
async def test_what_is_not_read_is_bounded_in_bytes_and_in_frames(frame, on_pipes, most):
    client = Typing(frame)
    with mock.patch.object(terminal, "UNREAD_S", 0.1):
        with pytest.raises(Refusal, match="has not read its input for"):
            await _attend(client, Deaf(), on_pipes)
    assert client.sent == 1 + most + 1


@in_a_loop
async def test_who_sends_more_than_is_kept_waits_until_it_is_read():
    frames, sent = _Unread(), [{"bytes": bytes([n]) * (48 << 10)} for n in range(100)]

    async def send():
        for frame in sent:
            await frames.put(frame)

    sending = asyncio.ensure_future(send())
    await asyncio.sleep(0.05)
    assert not sending.done()
    assert [await frames.get() for _ in sent] == sent
    await sending


@in_a_loop
async def test_one_frame_may_be_larger_than_what_is_kept():
    frames, frame = _Unread(), {"bytes": b"x" * (MAX_BYTES + 1)}
    await frames.put(frame)
    assert await frames.get() == frame
