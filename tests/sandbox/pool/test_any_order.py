"""Whatever happens in whatever order: slots are never exceeded, and every start ends once."""

import asyncio
import collections

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import StartRequest, State
from tests.sandbox.pool.fakes import OTHER, SPEC, FakeRuntime, HandPool, settle

SLOTS = 3
IDS = ("", "a", "b", "c", "d")


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.patch = pytest.MonkeyPatch()  # no pauses: time passes by ticks alone
        self.patch.setattr("ale_jax.sandbox.pool.lifecycle.FIRST_PAUSE_S", 0.0)
        self.calls: list[asyncio.Future] = []
        self.gates: list[asyncio.Event] = []
        self.ends = collections.Counter()

    def do(self, coroutine):
        async def and_settle():
            answer = await coroutine
            await settle()
            return answer

        return self.loop.run_until_complete(and_settle())

    @initialize(creates=st.integers(1, 3))
    def open(self, creates):
        async def make():
            self.runtime = FakeRuntime()
            options = {"slots": SLOTS, "creates": creates, "max_losses": 2}
            # On a busy machine this process may get no CPU for a while just when one is ended.
            options |= {"remember_seconds": 50.0, "close_seconds": 1.0}
            self.pool = HandPool(self.runtime, **options)
            self._count_ends()
            await self.pool.open()

        self.do(make())

    def _count_ends(self):
        lifecycle, retire = self.pool._lifecycle, self.pool._lifecycle._retire

        def counted(member):
            self.ends[member] += 1
            retire(member)

        lifecycle._retire = counted

    @rule(
        id=st.sampled_from(IDS),
        spec=st.sampled_from([SPEC, SPEC, OTHER]),
        recreate=st.booleans(),
        idle=st.sampled_from([0.0, 3.0]),
        plan=st.sampled_from(["ok", "ok", "wait", "fail"]),
    )
    def start(self, id, spec, recreate, idle, plan):
        async def begin():
            self.runtime.plan.append(plan)
            request = StartRequest(spec, id=id, recreate=recreate, idle_seconds=idle)
            self.calls.append(asyncio.ensure_future(self.pool.start(request)))

        self.do(begin())

    @rule(count=st.integers(1, 3), spare=st.integers(0, 2))
    def start_many(self, count, spare):
        async def begin():
            request = StartRequest(SPEC)
            self.calls.append(asyncio.ensure_future(self.pool.start_many(request, count, spare)))

        self.do(begin())

    @rule(data=st.data())
    def cancel(self, data):
        waiting = [call for call in self.calls if not call.done()]
        if waiting:
            data.draw(st.sampled_from(waiting)).cancel()
            self.do(asyncio.sleep(0))

    @rule(data=st.data(), hold=st.booleans())
    def call(self, data, hold):
        async def begin():
            id = data.draw(st.sampled_from(list(self.pool._lifecycle.sandboxes) or ["x"]))
            self.calls.append(asyncio.ensure_future(self.pool.call(id, "run", command="x")))

        if hold and self.runtime.sandboxes:
            self.gates.append(data.draw(st.sampled_from(self.runtime.sandboxes)).hold())
        self.do(begin())

    @rule(data=st.data())
    def stop(self, data):
        if ids := list(self.pool._lifecycle.sandboxes):
            self.do(self.pool.stop(data.draw(st.sampled_from(ids))))

    @rule(data=st.data(), how=st.sampled_from(["die", "freeze"]))
    def accident(self, data, how):
        if living := [each for each in self.runtime.sandboxes if not each.closed]:
            getattr(data.draw(st.sampled_from(living)), how)()

    @rule(count=st.integers(0, SLOTS))
    def warm(self, count):
        self.do(self.pool.warm(SPEC, count))

    @rule(times=st.integers(1, 8), seconds=st.sampled_from([0.0, 1.0, 30.0]))
    def tick(self, times, seconds):
        self.do(self.pool.tick(times, seconds))

    @rule()
    def let_go(self):
        self.runtime.go.set()
        for gate in self.gates:
            gate.set()
        self.do(asyncio.sleep(0))
        self.runtime.go.clear()

    @invariant()
    def slots_are_never_exceeded(self):
        if hasattr(self, "pool"):
            assert self.runtime.most <= SLOTS
            assert self.runtime.existing <= self.pool.used <= SLOTS

    @invariant()
    def nothing_has_ended_twice_and_what_lives_has_not_ended(self):
        if hasattr(self, "pool"):
            assert set(self.ends.values()) <= {1}
            for id, member in self.pool._lifecycle.sandboxes.items():
                assert member.id == id
                assert member.life.is_over == (member in self.ends), member.life

    @invariant()
    def no_fault_and_no_strange_error(self):
        for call in self.calls:
            if call.done() and not call.cancelled() and call.exception():
                error = call.exception()
                another = isinstance(error, ValueError) and "that of another request" in str(error)
                assert another or isinstance(error, SandboxError), error

    @invariant()
    def who_is_told_that_it_runs_has_one_of_its_own(self):
        owned = [
            id(m.sandbox)
            for m in (self.pool._lifecycle.sandboxes.values() if hasattr(self, "pool") else [])
            if m.sandbox is not None
        ]
        assert len(owned) == len(set(owned))

    def teardown(self):
        if hasattr(self, "pool"):
            members = list(self.pool._lifecycle.sandboxes.values())
            self.let_go()
            self.do(self.pool.close())
            self.let_go()
            assert self.runtime.existing == self.pool.used == 0
            assert all(self.ends[member] == 1 for member in members)
            assert all(call.done() for call in self.calls)
            self.no_fault_and_no_strange_error()
            assert {m.life.state for m in members} <= {State.STOPPED, State.FAILED}
        self.patch.undo()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
