"""Whether silence means death: what the kernel tells of processes that run, wait, sleep."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from ale_jax.sandbox.vitals import (
    LOOK_S,
    STUCK_S,
    Silence,
    Vitals,
    Watch,
    read_vitals,
    time_to_answer,
)
from tests.rows import each_row
from tests.sandbox.pool.fakes import Clock, in_a_loop

WAITING, STOPPED, BLOCKED = Silence.WAITING, Silence.STOPPED, Silence.BLOCKED


def looks(*samples: tuple[float, Vitals | None]) -> list[Silence]:
    """What a watch says of samples, each that many seconds after the one before."""
    clock, seen = Clock(), [each for _, each in samples]
    watch, said = Watch(lambda: seen.pop(0), clock), []
    for seconds, _ in samples:
        clock.now += seconds
        said.append(watch.look())
    return said


def runs(cpu: float) -> Vitals:
    return Vitals(runnable=True, stopped=False, cpu_seconds=cpu)


def sleeps(cpu: float) -> Vitals:
    return Vitals(runnable=False, stopped=False, cpu_seconds=cpu)


@each_row(
    "samples,said",
    [
        (((1, runs(3)), (1, runs(3.4)), (1, runs(3.8))), [WAITING] * 3),  # less than half a CPU
        (((1, runs(3)), (1, runs(3.6))), [WAITING, BLOCKED]),  # it ran, and said nothing
        (((1, sleeps(3)), (1, runs(3)), (1, sleeps(3))), [BLOCKED, WAITING, BLOCKED]),
        (((1, Vitals(False, True, 3)),), [STOPPED]),
        (((1, None), (1, runs(3))), [BLOCKED, WAITING]),
        (
            ((1, runs(3)), (99, runs(3 + STUCK_S)), (99, runs(3.1 + STUCK_S))),
            [WAITING] * 2 + [BLOCKED],
        ),
    ],
)
def test_a_runner_is_alive_as_long_as_it_waits_for_a_cpu(samples, said):
    assert looks(*samples) == said


@pytest.fixture
def busy():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.heavy
def test_a_process_that_runs_is_told_from_one_that_is_stopped(busy):
    first = read_vitals(busy)
    while (now := read_vitals(busy)).cpu_seconds <= first.cpu_seconds:
        time.sleep(0.01)
    assert now.runnable and not now.stopped
    os.kill(busy, signal.SIGSTOP)
    while not (now := read_vitals(busy)).stopped:
        time.sleep(0.01)
    assert not now.runnable and read_vitals(busy).cpu_seconds == now.cpu_seconds


@pytest.mark.heavy
def test_a_process_that_has_ended_has_no_vitals(busy):
    os.kill(busy, signal.SIGKILL)
    os.waitpid(busy, 0)
    assert read_vitals(busy) is None


@in_a_loop
async def test_a_time_limit_does_not_end_while_the_runner_waits_for_a_cpu():
    samples = [runs(1.0)] * 3
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with time_to_answer(0.01, lambda: samples.pop() if samples else sleeps(1.0)):
            await asyncio.sleep(3600)
    assert not samples and asyncio.get_running_loop().time() - began >= 3 * LOOK_S


@in_a_loop
async def test_a_time_limit_that_is_kept_leaves_nothing_behind():
    async with time_to_answer(0.01, lambda: pytest.fail("it was looked at")):
        pass
    await asyncio.sleep(0.02)
