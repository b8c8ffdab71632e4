"""What a pulse tells besides life: how busy a sandbox is, and for how long it has been silent."""

import types

import pytest

from ale_jax.sandbox.pool import pulse
from tests.sandbox.pool.fakes import SPEC, Clock, FakeRuntime, FakeSandbox, in_a_loop, settle

TICK_S, ASK_TICKS = 0.25, 2


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pulse, "time", types.SimpleNamespace(monotonic=clock))
    return clock


def new_sandbox() -> FakeSandbox:
    return FakeSandbox(FakeRuntime(), SPEC, None)


async def beat(a_pulse, sandbox, times: int) -> None:
    for _ in range(times):
        assert a_pulse.beat(sandbox, patience=100) is None
        await settle()


@in_a_loop
async def test_cpu_is_what_was_used_between_two_answers(clock):
    sandbox, a_pulse = new_sandbox(), pulse.Pulse(ASK_TICKS, TICK_S)
    await beat(a_pulse, sandbox, 3)
    assert a_pulse.stats.cpu_seconds == 0.0 and a_pulse.cpu_percent is None
    for seconds, used, percent in ((2.0, 1.0, 50.0), (1.0, 1.5, 150.0), (4.0, 0.0, 0.0)):
        clock.now += seconds
        sandbox.cpu_seconds += used
        await beat(a_pulse, sandbox, 3)
        assert a_pulse.cpu_percent == pytest.approx(percent)


@in_a_loop
async def test_cpu_that_is_not_counted_is_not_made_up(clock):
    sandbox, a_pulse = new_sandbox(), pulse.Pulse(ASK_TICKS, TICK_S)
    for seconds in (None, 1.0, None, None):
        clock.now += 1.0
        sandbox.cpu_seconds = seconds
        await beat(a_pulse, sandbox, 3)
        assert a_pulse.stats.cpu_seconds is seconds and a_pulse.cpu_percent is None


@in_a_loop
async def test_silence_is_counted_from_the_question(clock):
    sandbox, a_pulse = new_sandbox(), pulse.Pulse(ASK_TICKS, TICK_S)
    await beat(a_pulse, sandbox, 3 + 1)  # the last is one tick after the answer
    assert a_pulse.silent_seconds == 0.0
    sandbox.freeze()
    await beat(a_pulse, sandbox, 1)
    assert a_pulse.silent_seconds == 0.0
    await beat(a_pulse, sandbox, 5)
    assert a_pulse.silent_seconds == 5 * TICK_S
