"""Calls of a sandbox whose runner answers as it likes."""

import asyncio
import struct

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner import wire
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.test_link import Wire, run

SPEC = SandboxSpec(output_bytes=1000)
INFINITE = float("inf")
DONE = {"exit_code": 0, "timed_out": False, "kept": [[0, 0], [0, 0]]}
RAN = {**DONE, "head": 0, "omitted": 0, "session_ended": False}


class Machine:
    """Is there, and notes whether it was destroyed."""

    def __init__(self):
        self.link, self.wire, self.is_destroyed = Link(), Wire(), False
        self.link.connection_made(self.wire)

    def vitals(self):
        return None

    def usage(self):
        return {}

    def last_words(self):
        return ""

    async def destroy(self):
        self.is_destroyed = True


async def started(call):
    """A call that waits for its answer, as a task, and its machine. Its stream is 1."""
    machine = Machine()
    task = asyncio.ensure_future(call(AsyncSandbox(machine, SPEC, {})))
    while not machine.wire.written:
        await asyncio.sleep(0)
    return task, machine


async def waited_for(box):
    return await box.spawn("x").wait()


def ended(**outcome):
    return wire.json_frame(wire.END, 1, outcome)


def data(size, kind=wire.DATA):
    return wire.frame(kind, 1, b"x" * size)


def test_a_process_is_its_output_and_its_outcome():
    async def test():
        task, machine = await started(lambda box: box.exec("x"))
        end = ended(**DONE | {"exit_code": 3})
        machine.link.data_received(data(1000) + data(3, wire.ERROR) + end)
        result = await task
        assert (len(result.stdout), result.stderr, result.exit_code) == (1000, "xxx", 3)

    run(test)


@each_row(
    "call, frames",
    [
        (lambda box: box.exec("x"), data(1001)),
        (lambda box: box.exec("x"), data(1000) + data(1)),
        (lambda box: box.exec("x"), data(1001, wire.ERROR)),
        (lambda box: box.exec("x"), ended()),
        (lambda box: box.exec("x"), ended(**DONE | {"kept": 5})),
        (lambda box: box.exec("x"), ended(**DONE | {"kept": [[0, 0]]})),
        (lambda box: box.exec("x"), ended(**DONE | {"kept": [[0, 0], [0]]})),
        (lambda box: box.exec("x"), ended(**DONE | {"kept": [[0, 0], [None, 1]]})),
        (lambda box: box.exec("x"), ended(**DONE | {"exit_code": INFINITE})),
        (lambda box: box.exec("x"), ended(**DONE | {"exit_code": None})),
        (waited_for, ended()),
        (waited_for, ended(exit_code=-INFINITE)),
        (lambda box: box.run("x"), ended(**RAN | {"exit_code": INFINITE})),
        (lambda box: box.run("x"), ended(**RAN | {"omitted": INFINITE})),
        (lambda box: box.interrupt(), ended()),
        (
            lambda box: box.list(),
            wire.frame(wire.DATA, 1, b"[" * wire.CHUNK) + ended(),
        ),
        (lambda box: box.read("f"), ended(error="no", errno=[2])),
    ],
)
def test_a_runner_that_answers_nonsense_is_given_up(call, frames):
    async def test():
        task, machine = await started(call)
        machine.link.data_received(frames)
        with pytest.raises(SandboxLost):
            await task
        assert machine.is_destroyed

    run(test)


def test_a_process_that_cannot_be_started_costs_only_its_call():
    async def test():
        task, machine = await started(lambda box: box.exec("x"))
        machine.link.data_received(ended(error="no room"))
        with pytest.raises(SandboxError, match="cannot start a process: no room"):
            await task
        assert not machine.is_destroyed and not machine.link._streams

    run(test)


def test_an_exec_that_is_given_up_is_cancelled_and_leaves_no_stream():
    async def test():
        task, machine = await started(lambda box: box.exec("x", stdin=b"y" * 2 * wire.WINDOW))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(8):  # two windows
            machine.link.data_received(data(wire.CHUNK))
        credited = [p for _, kind, p in machine.wire.frames() if kind == wire.CREDIT]
        assert sum(struct.unpack(">I", each)[0] for each in credited) == 2 * wire.WINDOW
        assert [
            each[:2] for each in machine.wire.frames() if each[1] in (wire.CANCEL, wire.END)
        ] == [
            (1, wire.CANCEL),
            (1, wire.END),
        ]
        machine.link.data_received(ended(**DONE))
        assert not machine.link._streams and not machine.is_destroyed

    run(test)
