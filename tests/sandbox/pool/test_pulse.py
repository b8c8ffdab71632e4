"""What a pulse tells besides life: how busy a sandbox is, and for how long it has been silent."""

import types

import pytest

from ale_jax.sandbox.pool import pooled_sandbox
from tests.sandbox.pool.fakes import SPEC, Clock, FakeRuntime, FakeSandbox, in_a_loop, settle

TICK_S, ASK_TICKS = 0.25, 2


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pooled_sandbox, "time", types.SimpleNamespace(monotonic=clock))
    return clock


def new_sandbox() -> FakeSandbox:
    return FakeSandbox(FakeRuntime(), SPEC, None)


async def beat(heartbeat, sandbox, times: int) -> None:
    for _ in range(times):
        assert heartbeat.beat(sandbox, patience=100) is None
        await settle()


@in_a_loop
async def test_cpu_is_what_was_used_between_two_answers(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(ASK_TICKS, TICK_S)
    await beat(heartbeat, sandbox, 3)
    assert heartbeat.stats.cpu_seconds == 0.0 and heartbeat.cpu_percent is None
    for seconds, used, percent in ((2.0, 1.0, 50.0), (1.0, 1.5, 150.0), (4.0, 0.0, 0.0)):
        clock.now += seconds
        sandbox.cpu_seconds += used
        await beat(heartbeat, sandbox, 3)
        assert heartbeat.cpu_percent == pytest.approx(percent)


@in_a_loop
async def test_cpu_that_is_not_counted_is_not_made_up(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(ASK_TICKS, TICK_S)
    for seconds in (None, 1.0, None, None):
        clock.now += 1.0
        sandbox.cpu_seconds = seconds
        await beat(heartbeat, sandbox, 3)
        assert heartbeat.stats.cpu_seconds is seconds and heartbeat.cpu_percent is None


@in_a_loop
async def test_silence_is_counted_from_the_question(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(ASK_TICKS, TICK_S)
    await beat(heartbeat, sandbox, 3 + 1)  # the last is one tick after the answer
    assert heartbeat.silent_seconds == 0.0
    sandbox.freeze()
    await beat(heartbeat, sandbox, 1)
    assert heartbeat.silent_seconds == 0.0
    await beat(heartbeat, sandbox, 5)
    assert heartbeat.silent_seconds == 5 * TICK_S
