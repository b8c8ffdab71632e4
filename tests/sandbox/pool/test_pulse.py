"""What a pulse tells besides life: how busy a sandbox is, and for how long it has been silent."""

import types

import pytest

from ale_jax.sandbox.pool import pooled_sandbox
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.vitals import Vitals
from tests.sandbox.pool.fakes import (
    SPEC,
    Clock,
    FakeRuntime,
    FakeSandbox,
    HandPool,
    in_a_loop,
    settle,
)

OPTIONS = PoolOptions(ask_ticks=2, silent_ticks=4, silent_busy_ticks=40)
TICK_S = OPTIONS.tick_seconds
WAITS, SLEEPS = Vitals(True, False, 1.0), Vitals(False, False, 1.0)
STOPPED = Vitals(False, True, 1.0)


@pytest.fixture(autouse=True)
def stats_every_time(monkeypatch):
    monkeypatch.setattr(pooled_sandbox, "STATS_EVERY", 1)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pooled_sandbox, "time", types.SimpleNamespace(monotonic=clock))
    return clock


def new_sandbox() -> FakeSandbox:
    return FakeSandbox(FakeRuntime(), SPEC, None)


async def beat(heartbeat, sandbox, times: int) -> None:
    for _ in range(times):
        assert heartbeat.beat(sandbox, is_busy=True) is None
        await settle()


@in_a_loop
async def test_cpu_is_what_was_used_between_two_answers(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    await beat(heartbeat, sandbox, 3)
    assert heartbeat.stats.cpu_seconds == 0.0 and heartbeat.cpu_percent is None
    for seconds, used, percent in ((2.0, 1.0, 50.0), (1.0, 1.5, 150.0), (4.0, 0.0, 0.0)):
        clock.now += seconds
        sandbox.cpu_seconds += used
        await beat(heartbeat, sandbox, 3)
        assert heartbeat.cpu_percent == pytest.approx(percent)


@in_a_loop
async def test_cpu_that_is_not_counted_is_not_made_up(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    for seconds in (None, 1.0, None, None):
        clock.now += 1.0
        sandbox.cpu_seconds = seconds
        await beat(heartbeat, sandbox, 3)
        assert heartbeat.stats.cpu_seconds is seconds and heartbeat.cpu_percent is None


@in_a_loop
async def test_silence_is_counted_from_the_question(clock):
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    await beat(heartbeat, sandbox, 3 + 1)  # the last is one tick after the answer
    assert heartbeat.silent_seconds == 0.0
    sandbox.freeze()
    await beat(heartbeat, sandbox, 1)
    assert heartbeat.silent_seconds == 0.0
    await beat(heartbeat, sandbox, 5)
    assert heartbeat.silent_seconds == 5 * TICK_S


async def ticks_until_death(seen: Vitals | None, is_busy: bool, most: int = 100) -> int | None:
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    sandbox.freeze()
    sandbox.seen = seen
    for tick in range(most):
        if heartbeat.beat(sandbox, is_busy):
            return tick - OPTIONS.ask_ticks + 1
        await settle()
    return None


@in_a_loop
async def test_only_silence_in_which_it_could_answer_is_death():
    for seen, idle, busy in (
        (None, 4, 40),  # nobody knows
        (SLEEPS, 4, 40),  # frozen, or at work on a call
        (STOPPED, 4, 4),  # no call explains that
        (WAITS, None, None),
    ):
        assert await ticks_until_death(seen, is_busy=False) == idle, seen
        assert await ticks_until_death(seen, is_busy=True) == busy, seen


@in_a_loop
async def test_silence_while_it_waits_for_a_cpu_is_not_told():
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    sandbox.freeze()
    sandbox.seen = WAITS
    await beat(heartbeat, sandbox, 2 + 10)
    assert heartbeat.silent_seconds == 0.0
    sandbox.seen = SLEEPS
    await beat(heartbeat, sandbox, 3)
    assert heartbeat.silent_seconds == 3 * TICK_S


@in_a_loop
async def test_most_questions_are_pings(monkeypatch):
    monkeypatch.setattr(pooled_sandbox, "STATS_EVERY", 5)
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    await beat(heartbeat, sandbox, 3)
    assert (sandbox.pings, heartbeat.stats.disk_bytes) == (0, 2)  # known from the first answer on
    await beat(heartbeat, sandbox, 3 * 9)
    assert sandbox.pings == 8


@in_a_loop
async def test_questions_to_many_sandboxes_are_spread(monkeypatch):
    monkeypatch.setattr(pooled_sandbox, "STATS_EVERY", 5)
    runtime = FakeRuntime()
    async with HandPool(runtime, slots=12, ask_ticks=3) as pool:
        await pool.start_many(StartRequest(SPEC), 12)
        await pool.tick(8)  # every first question was answered
        asked = []
        for _ in range(4):
            before = sum(each.pings for each in runtime.sandboxes)
            await pool.tick()
            asked.append(sum(each.pings for each in runtime.sandboxes) - before)
        assert asked.count(4) == 3 and sum(asked) == 12


@in_a_loop
async def test_what_a_replaced_machine_was_asked_is_no_death(monkeypatch):
    monkeypatch.setattr(pooled_sandbox, "STATS_EVERY", 5)
    sandbox, heartbeat = new_sandbox(), pooled_sandbox.Heartbeat(OPTIONS)
    await beat(heartbeat, sandbox, 3)
    sandbox.freeze()
    await beat(heartbeat, sandbox, 2)
    assert sandbox.pings == 1  # which the old machine has not answered
    sandbox.replace_machine()
    await settle()
    await beat(heartbeat, sandbox, 1 + 3 * 2)
    assert sandbox.pings == 3
    sandbox.die()
    assert [heartbeat.beat(sandbox, is_busy=False) for _ in range(2)][-1] == "it died"
