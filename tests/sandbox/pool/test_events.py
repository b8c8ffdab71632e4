"""What a pool remembers of what happened: numbered, bounded, and whose it was."""

import pytest

from ale_jax.sandbox.pool import events
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.events import EventRing
from tests.sandbox.pool.fakes import SPEC, Clock, Events, FakeRuntime, HandPool, in_a_loop


@pytest.fixture
def ring():
    return EventRing(Clock(), Events())


def kinds(found) -> list[str]:
    return [event.kind for event in found.events]


def test_a_follower_is_told_what_is_new(ring):
    ring.record("first", "of all", sandbox="a", generation=0)
    (first,) = ring.after(0).events
    assert (first.kind, first.detail, first.sandbox) == ("first", "of all", "a")
    assert (first.fields, first.at) == ({"generation": 0}, 1000.0)
    ring.record("second", "", at=7.0)
    ring.record("third", "")
    new = ring.after(first.number)
    assert kinds(new) == ["second", "third"] and new.events[0].at == 7.0
    assert [event.number for event in new.events] == [first.number + 1, first.number + 2]
    assert new.last == first.number + 2 and kinds(ring.after(new.last)) == []


def test_numbers_go_on_where_an_earlier_pool_left_off():
    clock = Clock()
    earlier = EventRing(clock, Events())
    for _ in range(5):
        earlier.record("old", "")
    clock.now += 1.0
    later = EventRing(clock, Events())
    for _ in range(10):
        later.record("new", "")
    assert kinds(later.after(earlier.after(0).last)) == ["new"] * 10


def test_after_a_clock_was_set_back_nothing_is_kept_from_a_follower(ring):
    ring.record("new", "")
    assert kinds(ring.after(10**15)) == ["new"]


def test_what_agents_cause_pushes_out_its_like_only(ring, monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENTS", 3)
    ring.record("sandbox_lost", "")
    assert ring.after(0).forgotten == 0
    for number in range(5):
        ring.record("egress_refused", str(number))
    found = ring.after(0)
    assert kinds(found) == ["sandbox_lost", *["egress_refused"] * 3]
    assert [event.detail for event in found.events] == ["", "2", "3", "4"]
    assert found.forgotten == found.events[0].number + 2  # of the refusal called 1
    for _ in range(4):
        ring.record("sandbox_started", "")
    assert kinds(ring.after(0)) == ["egress_refused"] * 3 + ["sandbox_started"] * 3


def test_long_texts_are_cut_and_passed_on_whole():
    told = []
    ring = EventRing(Clock(), lambda kind, detail, **fields: told.append((kind, detail, fields)))
    ring.record("k", "x" * 10_000, host="y" * 10_000, port=None, status=403)
    (event,) = ring.after(0).events
    assert (event.detail, event.fields) == ("x" * 500, {"host": "y" * 500, "status": 403})
    assert told == [("k", "x" * 10_000, {"host": "y" * 10_000, "status": 403})]


async def lives_of(pool) -> list[tuple]:
    found = (await pool.events_after(0)).events
    return [(e.kind.removeprefix("sandbox_"), e.sandbox, e.fields["generation"]) for e in found]


@in_a_loop
async def test_every_start_loss_recreation_and_end_is_an_event():
    runtime = FakeRuntime("ok", "ok", "fail")
    async with HandPool(runtime) as pool:
        await pool.start(StartRequest(SPEC, id="a", recreate=True))
        runtime.sandboxes[0].die()
        await pool.tick(4)
        with pytest.raises(Exception, match="no such image"):
            await pool.start(StartRequest(SPEC, id="b"))
        await pool.start(StartRequest(SPEC, id="c", idle_seconds=5))
        await pool.tick(seconds=6)
        await pool.stop("a")
        assert await lives_of(pool) == [
            ("started", "a", 0),
            ("lost", "a", 0),
            ("recreated", "a", 1),
            ("start_failed", "b", 0),
            ("started", "c", 0),
            ("ended", "c", 0),
            ("ended", "a", 1),
        ]
        ends = (await pool.events_after(0)).events[-2:]
        assert [event.fields["cause"] for event in ends] == ["idle", "stopped"]


@in_a_loop
async def test_a_denial_is_told_of_the_sandbox_under_the_name_that_it_has_now():
    runtime = FakeRuntime()
    async with HandPool(runtime) as pool:
        await pool.warm(SPEC, 1)
        await pool.tick(2)
        await pool.start(StartRequest(SPEC, id="a"))
        deny = runtime.sandboxes[0].record
        deny("egress_refused", "closed.test:80 is not on the list", host="closed.test", port=80)
        (*_, warm, started, denied) = (await pool.events_after(0)).events
        assert (warm.kind, started.kind) == ("sandbox_warm", "sandbox_started")
        assert (denied.kind, denied.sandbox) == ("egress_refused", "a")
        assert denied.fields == {"generation": 0, "host": "closed.test", "port": 80}
