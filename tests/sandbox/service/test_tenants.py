"""Tokens with limits: what one of them may take, and what it leaves to the others."""

import asyncio
import json
import math
import re
import threading
import time

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ale_jax.sandbox.pool.accounting import Room
from ale_jax.sandbox.pool.api import PoolFull, QuotaExceeded
from ale_jax.sandbox.service.access import ServiceSettings, Tenant, parse_tokens
from ale_jax.sandbox.service.guard import PIECE, _Metered
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.tenants import DEFAULT_QUOTA, Quota, TenantAccount, Turns
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.pool.fakes import Clock, in_a_loop
from tests.sandbox.service.conftest import ANN, BOB, ROOT, over_memory
from tests.sandbox.service.test_repeats import held, post, release

SECRET = "s" * 16
SPEC = SandboxSpec(memory_mb=100, cpus=1.0, files_mb=10)
SETTINGS = ServiceSettings(port=0)


def limited(**limits):
    """A service whose tenant ann has limits."""
    return over_memory(SETTINGS, {ANN: Tenant("ann", quota=Quota(**limits)), BOB: Tenant("bob")})


def test_a_line_sets_limits_and_the_star_sets_them_for_all():
    lines = [f"ann {SECRET} admin cpus=2.5 sandboxes=3", f"bob {SECRET}2", "* memory_mb=100 cpus=1"]
    tokens = parse_tokens(lines, "file")
    quota = Quota(memory_mb=100.0, cpus=1.0)
    assert tokens.find(SECRET) == Tenant("ann", True, Quota(3.0, 100.0, 2.5))
    assert tokens.find(SECRET + "2") == Tenant("bob", False, quota)
    assert tokens.local.quota == quota and tokens.names == {"ann", "bob"}
    assert parse_tokens([f"ann {SECRET} memory_mb=inf"], "").find(SECRET).quota == DEFAULT_QUOTA


@each_row(
    "line,told",
    [
        (f"ann {SECRET} sandbox=3", "'sandbox=3': choose among sandboxes, memory_mb"),
        (f"ann {SECRET} sandboxes=many", "must be sandboxes=NUMBER"),
        (f"ann {SECRET} sandboxes=0", "sandboxes 0.0 must be more than 0"),
        (f"ann {SECRET} sandboxes=nan", "must be more than 0"),
        (f"ann {SECRET} sandboxes=3 admin", "'admin': choose among"),
        ("* admin", "'admin': choose among"),
        (f"bob {SECRET}3 calls=9", "another token of 'bob' has other limits"),
    ],
)
def test_a_limit_that_means_nothing_is_explained(line, told):
    with pytest.raises(ValueError, match="file, line 2") as error:
        parse_tokens([f"bob {SECRET}2", line], "file")
    assert told in str(error.value) and SECRET not in str(error.value)


@each_row(
    "limits,told",
    [
        ({"sandboxes": 2}, "sandboxes 3 is more than this token may use, 2"),
        ({"memory_mb": 250}, "memory_mb 300 is more than this token may use, 250"),
        ({"cpus": 2.5}, "cpus 3 is more than this token may use, 2.5"),
        ({"disk_mb": 50}, "disk_mb 60 is more than this token may use, 50"),
    ],
)
def test_a_token_gets_no_more_than_its_limits(limits, told):
    with limited(**limits) as service, service.client(ANN) as ann, service.client(BOB) as bob:
        first, _ = ann.start(SPEC, id="a"), ann.start(SPEC, id="b")
        for ask in (
            lambda: ann.start(SPEC),
            lambda: ann.start_many(SPEC, 1),
            lambda: first.fork(1),
        ):
            with pytest.raises(QuotaExceeded) as error:
                ask()
            assert told in str(error.value)
        assert ann.start(SPEC, id="a").id == "a"  # a repeat starts nothing
        bob.start(SPEC)
        first.close()
        ann.start(SPEC)
        with pytest.raises(QuotaExceeded):
            ann.start(SPEC)


def test_starts_at_once_cannot_slip_through_together():
    with limited(sandboxes=5) as service, service.http(ANN) as http:
        statuses = []
        body = {"spec": SPEC.to_json()}

        def start():
            statuses.append(http.post("/v1/sandboxes", json=body).status_code)

        threads = [threading.Thread(target=start) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [201] * 5 + [403] * 7


def test_a_spec_without_a_limit_of_cpus_is_beyond_every_limit():
    with limited(cpus=100) as service, service.client(ANN) as ann:
        with pytest.raises(QuotaExceeded, match="set cpus"):
            ann.start(SandboxSpec())
    assert service.pool.members == {}


def test_output_that_would_fill_the_memory_of_the_service_is_refused(memory):
    with memory.client(ANN) as ann:
        with pytest.raises(QuotaExceeded, match=r"output_bytes 1073741824 .* use, 1048576;"):
            ann.start(SandboxSpec(output_bytes=1 << 30))
        ann.start(SandboxSpec(output_bytes=1 << 20))
    assert len(memory.pool.members) == 1


@each_row(
    "capacity,name",
    [
        (Room(8, math.inf, math.inf, math.inf), "sandboxes"),
        (Room(100, 800, math.inf, math.inf), "memory_mb"),
        (Room(100, math.inf, 8, math.inf), "cpus"),
    ],
)
def test_a_token_without_limits_leaves_as_much_as_it_takes(capacity, name):
    with over_memory(SETTINGS) as service, service.client(ANN) as ann, service.client(BOB) as bob:
        service.pool.capacity = capacity
        for _ in range(4):
            ann.start(SPEC)
        with pytest.raises(PoolFull, match=f"{name}: with .* only .* would be free"):
            ann.start(SPEC)
        bob.start(SPEC)
        bob.start(SPEC)
        with pytest.raises(PoolFull, match=name):
            bob.start(SPEC)
        with service.client(ROOT) as root:
            root.start(SPEC)


def test_a_single_tenant_may_take_all_and_a_limit_of_its_own_replaces_the_share():
    single = {ANN: Tenant("ann"), BOB: Tenant("ann")}
    own = {ANN: Tenant("ann", quota=Quota(sandboxes=4)), BOB: Tenant("bob")}
    for tokens in (single, own):
        with over_memory(SETTINGS, tokens) as service, service.client(ANN) as ann:
            service.pool.capacity = Room(4, math.inf, math.inf, math.inf)
            assert len(ann.start_many(SPEC, 4)) == 4


def test_times_to_live_have_defaults_and_maxima():
    with limited(idle_seconds=100, deadline_seconds=1000) as service, service.client(ANN) as ann:
        requests = []
        service.pool.on_start = requests.append
        box = ann.start(SPEC)
        ann.start(SPEC, idle_seconds=50.0, deadline_seconds=60.0)
        times = [(each.idle_seconds, each.deadline_seconds) for each in requests]
        assert times == [(100.0, 1000.0), (50.0, 60.0)]
        for more in ({"idle_seconds": 101.0}, {"deadline_seconds": 1001.0}):
            (name,) = more
            with pytest.raises(QuotaExceeded, match=f"{name} .* renew"):
                ann.start(SPEC, **more)
        box.renew()
        box.renew(30.0)
        with pytest.raises(QuotaExceeded, match="deadline_seconds 1001"):
            box.renew(1001.0)
        renewals = [each["seconds"] for _, method, each in service.pool.calls if method == "renew"]
        assert renewals == [1000.0, 30.0]


def test_a_snapshot_is_kept_within_the_limit_of_its_owner():
    with limited(snapshot_mb=3) as service:
        for token, limit in ((ANN, 3 << 20), (BOB, None)):
            with service.client(token) as client:
                client.start(SPEC).snapshot()
            assert service.pool.calls.pop() == (
                *(next(reversed(service.pool.members)), "snapshot"),
                {"max_bytes": limit},
            )


def test_too_many_calls_at_once_are_refused():
    with limited(calls=3) as memory, memory.http(ANN) as http:
        http.post("/v1/sandboxes", json={"id": "box-0", "spec": {}})
        held(memory)
        threads = [threading.Thread(target=post, args=(http, str(n))) for n in range(3)]
        for thread in threads:
            thread.start()
        while len(memory.pool.calls) < 3:
            time.sleep(0.01)
        answer = post(http, "more")
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["message"] == "calls 4 is more than this token may use, 3"
        url = memory.url.replace("http", "ws") + "/v1/sandboxes/box-0/terminal"
        token = {"Authorization": f"Bearer {ANN}"}
        with pytest.raises(InvalidStatus, match="429"), connect(url, additional_headers=token):
            pass
        with memory.http(BOB) as bob:  # who has calls of his own
            assert bob.get("/v1/sandboxes").status_code == 200
        release(memory)
        for thread in threads:
            thread.join()
        assert post(http, "more").status_code == 200


def test_downloads_beyond_the_buffer_wait_for_each_other():
    with limited(buffer_mb=3) as service, service.client(ANN) as ann:
        service.pool.answers["read"] = b"x"
        box = ann.start(SPEC)
        with pytest.raises(QuotaExceeded, match="buffer_mb 4"):
            box.read("f", 4 << 20)
        held(service)
        threads = [threading.Thread(target=box.read, args=("f", 2 << 20)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not service.pool.calls:
            time.sleep(0.01)
        assert box.status().busy == 0  # a call that holds nothing does not wait
        assert len(service.pool.calls) == 1
        release(service)
        for thread in threads:
            thread.join()
        assert len(service.pool.calls) == 2


def test_a_long_answer_arrives_whole_and_is_counted():
    with over_memory(SETTINGS) as service, service.client(ANN) as ann, service.client(ROOT) as root:
        content = bytes(range(256)) * 4000
        service.pool.answers["read"] = content
        box = ann.start(SPEC)
        (before,) = ann.usage()
        assert box.read("f", 2 << 20) == content
        (after,) = ann.usage()
        sent = after.total["bytes_out"] - before.total["bytes_out"]
        assert len(content) < sent < len(content) + 10_000
        assert after.total["calls"] - before.total["calls"] == 2
        assert (after.total["sandbox_seconds"], after.total["cpu_seconds"]) == (10.0, 2.5)
        assert (after.now["sandboxes"], after.now["memory_mb"], after.now["calls"]) == (1, 100, 1)
        assert after.limits["sandboxes"] is None and after.limits["output_bytes"] == 1 << 20
        assert [each.tenant for each in root.usage()] == ["ann", "root"]
        for token, shown in ((ANN, {"ann"}), (ROOT, {"ann", "root"})):
            with service.http(token) as http:
                text = http.get("/metrics").text
            assert 'ale_sandbox_tenant_cpu_seconds_total{tenant="ann"} 2.5' in text
            assert 'ale_sandbox_tenant_sandboxes{tenant="ann"} 1.0' in text
            assert set(re.findall('tenant="(.*?)"', text)) == shown
            assert 'ale_sandbox_node_alive{node="here"} 1.0' in text


def account(**limits):
    clock = Clock()
    return TenantAccount("ann", Quota(**limits), shares=False, clock=clock), clock


@in_a_loop
async def test_bytes_per_second_slow_down_and_then_refuse():
    ann, clock = account(bytes_per_second=100.0)
    with ann.call() as ticket:
        await ticket.send(100)  # a second's worth may come at once
        await ticket.receive(150)
        slow = asyncio.ensure_future(ticket.send(1))
        await asyncio.sleep(0.01)
        assert not slow.done()
        with pytest.raises(Refusal, match=r"1\.5 s behind"), ann.call():
            pass
        clock.now += 1.0
        with ann.call():
            pass
        clock.now += 0.6
        slow.cancel()
        await ticket.send(1)
    assert (ann.calls, ann.bytes_in, ann.bytes_out) == (0, 150, 102)


@in_a_loop
async def test_streams_have_their_turns_tenant_after_tenant():
    turns, order = Turns(), []

    async def pass_on(name):
        await turns.wait(name)
        order.append(name)

    waiting = [asyncio.ensure_future(pass_on(name)) for name in ["ann"] * 3 + ["bob"] * 2]
    gone = asyncio.ensure_future(turns.wait("ann"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*waiting)
    assert order == ["ann", "bob", "ann", "bob", "ann"]
    await asyncio.wait_for(pass_on("bob"), 5)


@in_a_loop
async def test_one_piece_passes_in_each_iteration_of_the_loop():
    turns, passed = Turns(), 0

    async def stream(name):
        nonlocal passed
        for _ in range(20):
            await turns.wait(name)
            passed += 1

    streams = [asyncio.ensure_future(stream(name)) for name in ("ann", "ann", "bob", "cid")]
    most = 0
    while not all(each.done() for each in streams):
        before = passed
        await asyncio.sleep(0)
        most = max(most, passed - before)
    assert most == 1 and passed == 80


@in_a_loop
async def test_pieces_of_streams_and_of_long_answers_wait_for_their_turns():
    waits, sent = [], []

    class Recorded(Turns):
        async def wait(self, name):
            waits.append((name, len(sent)))

    async def send(message):
        sent.append(message)

    with account()[0].call() as ticket:
        metered = _Metered(None, send, ticket, Recorded())
        long = b"x" * (2 * PIECE + 1)
        for message in (
            {"type": "http.response.start", "status": 200},
            {"type": "http.response.body", "body": b"short"},
            {"type": "http.response.body", "body": long},
            {"type": "http.response.body", "body": b"line", "more_body": True},
            {"type": "websocket.send", "bytes": b"frame"},
        ):
            await metered.send(message)
    bodies = [each.get("body") for each in sent[2:5]]
    assert b"".join(bodies) == long and sent[4]["more_body"] is False
    # The first two pieces of the long answer, the line and the frame, each before it is sent.
    assert waits == [("ann", 2), ("ann", 3), ("ann", 5), ("ann", 6)]


def test_answers_of_one_tenant_do_not_displace_those_of_another():
    settings = ServiceSettings(port=0, answers=2)
    with over_memory(settings) as service, service.http(ANN) as ann, service.http(BOB) as bob:
        body = {"spec": SPEC.to_json()}
        for http, id in ((ann, "a"), (bob, "b")):
            http.post("/v1/sandboxes", json=body | {"id": id})
        run = {"json": {"command": "x"}, "headers": {"X-Request-Id": "first"}}
        assert ann.post("/v1/sandboxes/a/run", **run).status_code == 200
        for n in range(5):
            again = {"X-Request-Id": str(n)}
            bob.post("/v1/sandboxes/b/run", json={"command": "x"}, headers=again)
        count = len(service.pool.calls)
        assert ann.post("/v1/sandboxes/a/run", **run).status_code == 200
        assert len(service.pool.calls) == count  # it was not executed again


def test_the_stream_of_one_tenant_ends_with_its_last_line(memory):
    memory.pool.answers["stream"] = [*[("stdout", b"y" * 1000)] * 50, ("exit", 0), None]
    with memory.http(ANN) as http:
        id = http.post("/v1/sandboxes", json={"spec": SPEC.to_json()}).json()["id"]
        answer = http.post(f"/v1/sandboxes/{id}/spawn", json={"argv": "yes"})
    assert json.loads(answer.text.splitlines()[-1]) == {"exit": 0}
    assert len(answer.text.splitlines()) == 52
