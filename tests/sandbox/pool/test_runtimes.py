"""The pool over real runtimes: what is warm, forked, killed, frozen, forgotten or given up."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from ale_jax.sandbox.booting import PROXY_PORT
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.pool.api import Cause, StartRequest, State
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from benchmarks.sandbox.host_view import (
    descendants,
    host_pids,
    is_gone,
    kill_machine,
    kill_runner,
    leftovers,
    runner_pid,
)
from tests.sandbox.conftest import SPEC
from tests.sandbox.pool.fakes import Events, in_a_loop, until
from tests.sandbox.test_death import wait_until

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]

OPTIONS = PoolOptions(slots=64)
AGAIN = StartRequest(SPEC, id="a", recreate=True)


def sandbox_of(pool, id: str):
    return pool._leases.known(id).sandbox


async def text(pool, id: str, command: str) -> str:
    return (await pool.call(id, "run", command=command)).output


async def all_ready(pool, count: int) -> None:
    await until(lambda: pool._warm.ready == count)


@in_a_loop
async def test_a_warm_one_works_and_a_fork_has_its_files(runtime):
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        await pool.warm(SPEC, 2)
        await all_ready(pool, 2)
        status = await pool.start(StartRequest(SPEC))
        assert State.READY in [change.state for change in status.history]
        await text(pool, status.id, "mkdir d; echo mine > d/f; chmod 700 d/f")
        await all_ready(pool, 2)
        forks = await pool.fork(status.id, 3)
        await text(pool, status.id, "echo changed > d/f")
        for fork in forks:
            assert await text(pool, fork.id, "cat d/f; stat -c %a d/f") == "mine\n700\n"
        assert len({fork.id for fork in forks} | {status.id}) == 4


@pytest.mark.parametrize("kill", [kill_machine, kill_runner])
@in_a_loop
async def test_a_killed_one_is_there_again(runtime, kill):
    async with NodePool(runtime, OPTIONS, events := Events()) as pool:
        await pool.start(AGAIN)
        await pool.start(StartRequest(SPEC, id="sibling"))
        await text(pool, "a", "echo mine > f")
        await text(pool, "sibling", "echo mine > f")
        await asyncio.to_thread(kill, sandbox_of(pool, "a"))
        await until(lambda: pool._leases.known("a").generation == 1)
        assert await text(pool, "a", "ls") == ""
        assert await text(pool, "sibling", "cat f") == "mine\n"
        assert (await pool.status("a")).state is State.RUNNING
        assert events.kinds == ["sandbox_started"] * 2 + ["sandbox_lost", "sandbox_recreated"]


@in_a_loop
async def test_a_frozen_one_is_noticed_and_replaced(runtime):
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        await pool.start(AGAIN)
        pid = await asyncio.to_thread(runner_pid, sandbox_of(pool, "a"))
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: pool._leases.known("a").generation == 1)
        assert await text(pool, "a", "echo new") == "new\n"
        assert "does not answer" in str((await pool.status("a")).history)
        await until(lambda: is_gone(pid))


@in_a_loop
async def test_one_that_is_busy_lives_and_is_missed_once_it_is_stopped(runtime):
    spec = dataclasses.replace(SPEC, cpus=0.05, pids=64)
    async with NodePool(runtime, OPTIONS, events := Events()) as pool:
        await pool.start(StartRequest(spec, id="a"))
        spin = "for i in {1..50}; do (while :; do :; done) & done"
        await pool.call("a", "exec", argv=f"setsid bash -c '{spin}' > /dev/null 2>&1 &")
        sandbox, pings = sandbox_of(pool, "a"), []
        ping = sandbox.ping
        sandbox.ping = lambda: pings.append(None) or ping()
        # Each question was answered, or there would be no further one.
        await until(lambda: len(pings) > OPTIONS.silent_ticks)
        assert (await pool.status("a")).state is State.RUNNING, events
        os.kill(await asyncio.to_thread(runner_pid, sandbox), signal.SIGSTOP)
        await until(lambda: pool._leases.known("a").life.cause is Cause.LOST)


CONNECT = f"""
exec 3<> /dev/tcp/127.0.0.1/{PROXY_PORT}
printf 'CONNECT closed.test:443 HTTP/1.1\\r\\n\\r\\n' >&3
head -n 1 <&3
"""


@in_a_loop
async def test_a_denied_connection_is_an_event_of_its_sandbox(runtime):
    spec = dataclasses.replace(SPEC, network=EgressPolicy("allowlist", ("open.test:443",)))
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        await pool.start(StartRequest(spec, id="a"))
        assert "403 closed.test:443 is not on" in await text(pool, "a", CONNECT)
        started, denied = (await pool.events_after(0)).events
        assert (started.kind, denied.kind) == ("sandbox_started", "egress_refused")
        told = denied.sandbox, denied.fields["host"], denied.fields["port"]
        assert told == ("a", "closed.test", 443)


@in_a_loop
async def test_limits_of_time_end_it(runtime):
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        await pool.start(StartRequest(SPEC, id="idle", idle_seconds=1.0))
        pids = await asyncio.to_thread(host_pids, sandbox_of(pool, "idle"))
        await pool.start(StartRequest(SPEC, id="late", deadline_seconds=1.0))
        for id, cause in (("idle", Cause.IDLE), ("late", Cause.DEADLINE)):
            await until(lambda id=id: pool._leases.known(id).life.state is State.STOPPED)
            assert (await pool.status(id)).cause is cause
        await until(lambda: all(is_gone(pid) for pid in pids))


@in_a_loop
async def test_output_comes_as_it_is_written_and_who_leaves_ends_the_job(runtime):
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        await pool.start(AGAIN)
        said = [each async for each in pool.stream("a", "cat; echo no >&2; exit 3", stdin=b"in")]
        assert sorted(said) == [("exit", 3), ("stderr", b"no\n"), ("stdout", b"in")]
        output = pool.stream("a", ["bash", "-c", "echo begun; sleep 1000"])
        assert await anext(output) == ("stdout", b"begun\n")
        assert (await pool.status("a")).busy == 1
        await output.aclose()
        assert (await pool.status("a")).busy == 0
        assert "sleep 1000" not in await text(pool, "a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


@in_a_loop
async def test_many_starts_that_are_cancelled_leave_nothing(runtime):
    before = set(leftovers(runtime.name, str(Owner.current())))
    async with NodePool(runtime, OPTIONS, Events()) as pool:
        starts = [asyncio.ensure_future(pool.start(StartRequest(SPEC))) for _ in range(64)]
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
        for start in starts:
            start.cancel()
        answers = await asyncio.gather(*starts, return_exceptions=True)
        up = [answer for answer in answers if not isinstance(answer, asyncio.CancelledError)]
        await until(lambda: pool._machines.slots - pool._machines.free == len(up))
        assert up  # all 64 where this loop was kept waiting for that long
    # What an earlier test left may go meanwhile.
    assert set(leftovers(runtime.name, str(Owner.current()))) <= before


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_process_that_ends_in_the_middle_of_its_starts_leaves_nothing(runtime, number, code):
    line = [sys.executable, "-m", "benchmarks.sandbox.many_starts", runtime.name, "64"]
    owner = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with owner, contextlib.ExitStack() as at_exit:
        at_exit.callback(owner.kill)
        name = owner.stdout.readline().strip()
        assert len(leftovers(runtime.name, name)) >= 4
        pids = descendants(owner.pid)
        assert pids or runtime.name == "docker"  # whose are the daemon's, and in its containers
        owner.send_signal(number)
        assert owner.wait(timeout=60) == code, owner.stderr.read()
    if number != signal.SIGKILL:
        assert not leftovers(runtime.name, name)  # without any reaper
    present = set(leftovers(runtime.name, name))
    runtime.reap()
    wait_until(lambda: not present.intersection(leftovers(runtime.name, name)))

    def swept() -> bool:
        """The daemon may finish a start of the killed process only after the first sweep."""
        runtime.reap()
        return not leftovers(runtime.name, name)

    wait_until(swept)
    wait_until(lambda: all(is_gone(pid) for pid in pids))
