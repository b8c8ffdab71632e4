"""What is left after cycles of create and stop, and after SIGINT and kill -9 during starts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox import inventory
from benchmarks.sandbox.findings import Figure, Finding, Trial, say
from benchmarks.sandbox.host_view import leftovers
from benchmarks.sandbox.plan import SPEC, Plan

AT_ONCE = 4
END_S = 120.0
ENDS = {
    "SIGINT in the middle of many starts": signal.SIGINT,
    "kill -9 of the pool in the middle of many starts": signal.SIGKILL,
}


def measure(name: str, plan: Plan) -> list[Finding]:
    runtime = pick_runtime(name, SPEC)
    asyncio.run(_cycle(runtime, 2 * AT_ONCE))  # creates what stays, for example connections
    before, fds = inventory.take(), _open_files()
    say(f"{name}: {plan.cycles} cycles of create and stop")
    asyncio.run(_cycle(runtime, plan.cycles))
    found: dict[str, inventory.Inventory] = {"cycles": inventory.left_since(before)}
    fds_left = max(0, _open_files() - fds)
    without_reaper = {}
    for what, number in ENDS.items():
        say(f"{name}: {what}")
        owner = _end_in_the_middle(name, plan.starts_at_once, number)
        without_reaper[what] = len(leftovers(name, owner))
        asyncio.run(_open_and_close(runtime))  # the next start, which removes what is left
        found[what] = inventory.left_since(before)
    _tell(name, found)
    counts = {what: sum(map(len, left.values())) for what, left in found.items()}
    return [
        Figure("cycles", "cycles of create and stop", plan.cycles),
        # What is left after one fault remains after the next one, so the largest count has all.
        Figure("leaked_objects", "things left after the next start", max(counts.values())),
        Figure("leaked_files", "open files more than before the cycles", fds_left),
        Figure("left_to_the_reaper", "sandboxes of the killed", sum(without_reaper.values())),
        *(_trial(what, counts[what], without_reaper[what]) for what in ENDS),
    ]


async def _cycle(runtime: Runtime, count: int) -> None:
    permits = asyncio.Semaphore(AT_ONCE)

    async def once(pool: NodePool) -> None:
        async with permits:
            id = (await pool.start(StartRequest(SPEC))).id
            answer = await pool.call(id, "run", command="sleep 99 & echo up > f; cat f")
            assert answer.output == "up\n"
            await pool.stop(id)

    async with NodePool(runtime, PoolOptions(slots=2 * AT_ONCE)) as pool:
        await asyncio.gather(*(once(pool) for _ in range(count)))


async def _open_and_close(runtime: Runtime) -> None:
    async with NodePool(runtime, PoolOptions(slots=1)):
        pass


def _end_in_the_middle(runtime: str, count: int, number: signal.Signals) -> str:
    """Signals a process that starts sandboxes; returns their owner when it has ended."""
    line = [sys.executable, "-m", "benchmarks.sandbox.many_starts", runtime, str(count)]
    # In a new session, so that an interrupt of this benchmark does not reach it.
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            owner = process.stdout.readline().strip()
            if owner:
                process.send_signal(number)
            _, words = process.communicate(timeout=END_S)
        finally:
            process.kill()
    if not owner:
        raise RuntimeError(f"{' '.join(line)} has ended: {words[-500:]}")
    return owner


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _tell(runtime: str, found: dict[str, inventory.Inventory]) -> None:
    for what, left in found.items():
        for kind, names in left.items():
            for name in sorted(names):
                say(f"{runtime}: {what}: left {kind}: {name}")


def _trial(what: str, left: int, to_the_reaper: int) -> Trial:
    seen = f"{left} things left; {to_the_reaper} sandboxes were the reaper's"
    return Trial(what, "fault", "order at exit, reaper at start", left == 0, seen)
