"""Many concurrent sandboxes: whether all answer correctly and soon, how much memory they use, and
what it costs to watch them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.events import NodeLoad
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox.findings import Figure, Finding, Sample, say
from benchmarks.sandbox.host_view import host_pids
from benchmarks.sandbox.plan import SPEC, Plan

STEP = 7
# The sum is in the shell, the log in a file, and `tail` is a process: all must be this sandbox's.
COMMAND = f"sum=$((sum + {STEP})); echo $name $sum >> log; tail -n 1 log; wc -l < log"
STEADY_RATE = 100  # commands per second
START_S = 600.0  # of one start, which mostly waits for its turn


def measure(name: str, plan: Plan) -> list[Finding]:
    return asyncio.run(_measure(name, plan))


async def _measure(name: str, plan: Plan) -> list[Finding]:
    count, runtime = plan.crowds[name], pick_runtime(name, SPEC)
    say(f"{name}: {count} sandboxes at once")
    load = NodeLoad()
    before, _ = load.memory()
    # They use a tenth of what their specs ask for, which may be more than the host has.
    memory_mb = count * SPEC.memory_mb
    options = PoolOptions(slots=count, memory_mb=memory_mb, launch_seconds=START_S)
    async with NodePool(runtime, options) as pool:
        began = time.perf_counter()
        ids = [status.id for status in await pool.start_many(StartRequest(SPEC), count)]
        took = time.perf_counter() - began
        answers = await asyncio.gather(
            *(pool.call(id, "run", command=f"name={id}; echo $name") for id in ids)
        )
        silent = sum(a.output != f"{id}\n" for a, id in zip(answers, ids, strict=True))
        after, _ = load.memory()
        pss = await asyncio.gather(*(asyncio.to_thread(_pss_mb, pool, id) for id in ids))
        each = plan.crowd_commands // count
        say(f"{name}: {each * count} commands in {count} sandboxes")
        played = await asyncio.gather(*(_play(pool, id, each) for id in ids))
        say(f"{name}: heartbeats alone, then {STEADY_RATE} commands per second")
        cores = await _heartbeat_cores(pool, ids, plan.crowd_seconds)
        steady = await _play_steadily(pool, ids, plan.crowd_seconds)
    failed = sum(failures for failures, _ in played)
    return [
        Figure("crowd", "sandboxes at once", count),
        Figure("crowd_silent", "of them, without the right answer", silent),
        Figure("crowd_starts_per_s", "of them, started per second", round(count / took, 2)),
        Sample("crowd_pss_mb", "memory of a sandbox's processes (PSS), MB", tuple(pss)),
        Figure(
            "crowd_host_mb", "memory of the host, by sandbox, MB", _mb((after - before) / count)
        ),
        Sample(
            "crowd_command_ms", "command, all at once, ms", tuple(ms for _, t in played for ms in t)
        ),
        Figure("crowd_heartbeat_cores", "heartbeats of all, cores", round(cores, 4)),
        Sample("crowd_steady_ms", f"command, {STEADY_RATE} a second, ms", tuple(steady)),
        Figure("commands_run", "commands run", each * count),
        Figure("commands_failed", "commands failed", failed),
    ]


async def _play(pool: NodePool, id: str, count: int) -> tuple[int, list[float]]:
    """How many commands failed or had a wrong result, and the milliseconds of each."""
    failures, times = 0, []
    for number in range(1, count + 1):
        began = time.perf_counter()
        try:
            result = await pool.call(id, "run", command=COMMAND, timeout=60.0)
        except SandboxError as error:
            say(f"{id}: command {number}: {error}")
            failures += 1
            continue
        times.append(1e3 * (time.perf_counter() - began))
        right = f"{id} {STEP * number}\n{number}\n"
        failures += (result.exit_code, result.output) != (0, right)
    return failures, times


async def _heartbeat_cores(pool: NodePool, ids: list[str], seconds: float) -> float:
    """CPU time that this process and the runners take while nobody calls, in cores."""
    await asyncio.sleep(min(seconds, 2.0))  # what the commands left to do
    began, before = time.perf_counter(), _cpu_seconds(pool, ids)
    await asyncio.sleep(seconds)
    return (_cpu_seconds(pool, ids) - before) / (time.perf_counter() - began)


def _cpu_seconds(pool: NodePool, ids: list[str]) -> float:
    runners = [pool._leases.known(id).sandbox.vitals() for id in ids]
    return time.process_time() + sum(runner.cpu_seconds for runner in runners if runner)


async def _play_steadily(pool: NodePool, ids: list[str], seconds: float) -> list[float]:
    """Milliseconds of commands that arrive at a fixed rate, in one sandbox after the other. A
    command waits for the one before it in the same sandbox, and its time includes the wait."""
    turns = {id: asyncio.Lock() for id in ids}

    async def call(id: str) -> float:
        began = time.perf_counter()
        async with turns[id]:
            await pool.call(id, "run", command="true", timeout=60.0)
        return 1e3 * (time.perf_counter() - began)

    began, calls = time.perf_counter(), []
    for number in range(int(seconds * STEADY_RATE)):
        await asyncio.sleep(max(0.0, began + number / STEADY_RATE - time.perf_counter()))
        calls.append(asyncio.ensure_future(call(ids[number % len(ids)])))
    return await asyncio.gather(*calls)


def _pss_mb(pool: NodePool, id: str) -> float:
    """Memory of all its processes: their own, and their share of memory shared with others."""
    total = 0
    for pid in host_pids(pool._leases.known(id).sandbox):
        fields = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in fields if line.startswith("Pss:"))
    return _mb(total << 10)


def _mb(size: float) -> float:
    return round(size / (1 << 20), 3)
