"""Sandboxes that are killed: time to detection, time to replacement, and effects on siblings."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable

from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox import full_disk
from benchmarks.sandbox.findings import Figure, Finding, Sample, Trial, say
from benchmarks.sandbox.host_view import freeze_runner, kill_machine, kill_runner
from benchmarks.sandbox.plan import SPEC, Plan

VICTIM, SIBLINGS = "victim", ("a", "b")
NOTICED_S = 30.0
FAULTS: dict[str, Callable[[AsyncSandbox], None]] = {
    "kill -9 of the runner, its init": kill_runner,
    "kill -9 of the machine": kill_machine,
    "SIGSTOP of the runner": freeze_runner,
}
KILLS = (kill_runner, kill_machine)
# An episode whose commands give the same transcript every time, if they are not disturbed.
EPISODE = (
    "seq 1 2000 | sort -R --random-source=<(yes) > numbers; sort -n numbers | md5sum",
    "mkdir -p a/b; for i in {1..20}; do echo line $i > a/b/$i; done; cat a/b/* | cksum",
    "total=0; for i in {1..500}; do total=$((total + i * i)); done; echo $total",
    "cd a/b; ls | sort -n | tail -n 3; pwd",
    "python3 -c 'import hashlib; print(hashlib.sha256(open(\"7\").read().encode()).hexdigest())'",
    "grep -c 1 *; cat missing; false",
    "yes $total | head -c 100000",
    "tar -cf - . | wc -c; rm -r ~/a; echo $?",
    "sleep 5 & kill %1; wait; cd; ls -A",
)

Transcript = tuple[tuple[str, int, bool, int], ...]


class Log:
    """A pool's `Record`, which stores the times of losses."""

    def __init__(self):
        self.lost_at: asyncio.Queue[float] = asyncio.Queue()

    def __call__(self, kind: str, detail: str, **fields: object) -> None:
        if kind == "sandbox_lost":
            self.lost_at.put_nowait(time.perf_counter())


@dataclasses.dataclass(frozen=True)
class Death:
    """Seconds from a fault until the pool noticed it, and until a new sandbox answered."""

    fault: str
    detect_s: float
    replace_s: float


def measure(name: str, plan: Plan) -> list[Finding]:
    return asyncio.run(_measure(name, plan))


async def _measure(name: str, plan: Plan) -> list[Finding]:
    say(f"{name}: {plan.kills} times each: {', '.join(FAULTS)}")
    runtime = pick_runtime(name, SPEC)
    async with NodePool(runtime, PoolOptions(slots=8), log := Log()) as pool:
        await pool.start(StartRequest(SPEC, id=VICTIM, recreate=True))
        for sibling in SIBLINGS:
            await pool.start(StartRequest(SPEC, id=sibling))
        undisturbed = [await _play(pool, sibling) for sibling in SIBLINGS]
        assert undisturbed[0] == undisturbed[1], "the episode is not deterministic"
        over = asyncio.Event()
        playing = [asyncio.ensure_future(_play_until(over, pool, each)) for each in SIBLINGS]
        deaths = [await _die(pool, log, fault) for _ in range(plan.kills) for fault in FAULTS]
        over.set()
        played = [each for episodes in await asyncio.gather(*playing) for each in episodes]
    changed = sum(each != undisturbed[0] for each in played)
    killed = [each for each in deaths if FAULTS[each.fault] in KILLS]
    frozen = [each for each in deaths if FAULTS[each.fault] not in KILLS]
    return [
        Sample("detect_s", "a kill is noticed, s", tuple(each.detect_s for each in killed)),
        Sample("replace_s", "a new sandbox answers, s", tuple(each.replace_s for each in killed)),
        Sample("frozen_detect_s", "a freeze is noticed, s", tuple(d.detect_s for d in frozen)),
        Sample("frozen_replace_s", "and replaced, s", tuple(each.replace_s for each in frozen)),
        Figure("sibling_episodes", "siblings' episodes meanwhile", len(played)),
        Figure("sibling_episodes_changed", "of them, changed in any byte", changed),
        *(_trial(fault, deaths, changed == 0) for fault in FAULTS),
        *([await full_disk.try_snapshot(runtime)] if os.getuid() == 0 else []),
    ]


async def _die(pool: NodePool, log: Log, fault: str) -> Death:
    began = time.perf_counter()
    await asyncio.to_thread(FAULTS[fault], pool._leases.known(VICTIM).sandbox)
    async with asyncio.timeout(NOTICED_S):
        lost_at = await log.lost_at.get()
    answer = await pool.call(VICTIM, "run", command="echo back")  # waits for the new one
    assert answer.output == "back\n"
    return Death(fault, lost_at - began, time.perf_counter() - began)


async def _play_until(over: asyncio.Event, pool: NodePool, id: str) -> list[Transcript]:
    played = [await _play(pool, id)]
    while not over.is_set():
        played.append(await _play(pool, id))
    return played


async def _play(pool: NodePool, id: str) -> Transcript:
    await pool.call(id, "reset")
    results = [await pool.call(id, "run", command=command) for command in EPISODE]
    return tuple((r.output, r.exit_code, r.timed_out, r.omitted_bytes) for r in results)


def _trial(fault: str, deaths: list[Death], siblings_same: bool) -> Trial:
    mine = [each for each in deaths if each.fault == fault]
    longest = max(each.replace_s for each in mine)
    seen = f"{len(mine)} times, replaced within {longest:.2f} s"
    if not siblings_same:
        seen += "; a sibling's episode changed"
    return Trial(fault, "fault", "health check, re-creation", siblings_same, seen)
