"""The output of a job in the runner, whose other writers never leave its pipes empty."""

import os

import pytest

from ale_jax.sandbox.runner.jobs import Job
from ale_jax.sandbox.runner.loop import Loop
from ale_jax.sandbox.runner.processes import Child
from ale_jax.sandbox.runner.session import MAX_PIPE
from ale_jax.sandbox.runner.wire import DATA

FAR_TOO_MUCH = 4 * MAX_PIPE


class Flooded:
    """Stands in for the agent, the stream and a buffer: whenever something is taken from standard
    output, it is filled up again."""

    def __init__(self, loop):
        self.child, self.taken = Child(loop, 0), 0

    def spawn(self, argv, fds, *_):
        self.output = os.dup(fds[1])
        os.set_blocking(self.output, False)
        self._fill()
        return self.child

    def end(self):
        self.child.exit_code = 3
        self.child.ended.set()

    async def receive(self):
        return b""

    async def send(self, data, kind):
        self.add(data)

    def add(self, data):
        self.taken += len(data)
        assert self.taken < FAR_TOO_MUCH, "nobody else got a turn, or it goes on for ever"
        self._fill()

    def _fill(self):
        try:
            while os.write(self.output, bytes(1 << 16)):
                pass
        except BlockingIOError:
            pass


class Over(Exception):
    pass


def outcome(loop, job, *others):
    outcomes = []

    async def run():
        outcomes.append(await job.run())
        raise Over

    for each in (run(), *others):
        loop.spawn(each)
    with pytest.raises(Over):
        loop.run()
    return outcomes[0]


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def flooded(loop):
    flooded = Flooded(loop)
    yield flooded
    os.close(flooded.output)


def job_of(loop, flooded, output_bytes):
    request = {"argv": ["x"], "script": None, "cwd": "/", "env": {}, "user": ""}
    request |= {"timeout": None, "terminal": None, "output_bytes": output_bytes}
    return Job(flooded, loop, flooded, request)


def test_a_job_ends_with_its_process_however_much_others_write(loop, flooded):
    job = job_of(loop, flooded, None)
    flooded.end()
    assert outcome(loop, job)["exit_code"] == 3
    assert MAX_PIPE <= flooded.taken < MAX_PIPE + (1 << 16)


def test_a_job_with_much_to_read_lets_others_have_their_turn(loop, flooded):
    job = job_of(loop, flooded, 100)
    (pipe,) = (fd for fd, kind in job._outputs.items() if kind == DATA)
    flooded.head, flooded.tail, flooded.omitted = b"", lambda: b"", 0
    job._kept[pipe] = flooded

    async def end():
        for _ in range(3):
            await loop.sleep(0)
        flooded.end()

    assert outcome(loop, job, end())["exit_code"] == 3
