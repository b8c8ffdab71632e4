"""Times until a sandbox works: cold start, warm start, reset and restore."""

from __future__ import annotations

import asyncio
import os
import time

import numpy as np

from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox import bare_docker
from benchmarks.sandbox.findings import Figure, Finding, Sample, say, timed_ms
from benchmarks.sandbox.plan import SPEC, Plan

WARM = 4
FILES, FILE_BYTES = 100, 100 << 10  # 10 MB of incompressible data
READY_S = 120.0


def measure(name: str, plan: Plan) -> list[Finding]:
    runtime = pick_runtime(name, SPEC)
    say(f"{name}: {plan.cold_starts} cold starts, {plan.warm_starts} from the warm pool")
    cold = _beside_bare(runtime, plan) if name == "docker" else _cold(runtime, plan)
    warm = asyncio.run(_warm_ms(runtime, plan.warm_starts))
    say(f"{name}: {plan.file_calls} resets, snapshots and restores")
    with runtime.start(SPEC, {}) as box:
        files = _file_calls(box, plan.file_calls)
    return [*cold, Sample("warm_start_ms", "start from the warm pool, ms", warm), *files]


def _cold(runtime: Runtime, plan: Plan) -> list[Finding]:
    times = [_cold_ms(runtime) for _ in range(1 + plan.cold_starts)][1:]
    return [Sample("cold_start_ms", "cold start to the first answer, ms", tuple(times))]


def _beside_bare(runtime: Runtime, plan: Plan) -> list[Finding]:
    """Measures alternately, so that other load on the machine affects all equally."""
    container = bare_docker.container_of_a_sandbox(runtime, SPEC)
    flags = bare_docker.run_flags(container)
    rounds = [
        (
            _cold_ms(runtime),
            bare_docker.run_ms(flags, SPEC.image),
            bare_docker.library_run_ms(container),
        )
        for _ in range(1 + plan.cold_starts)
    ][1:]
    ours, bare, library = zip(*rounds, strict=True)
    return [
        Sample("cold_start_ms", "cold start to the first answer, ms", ours),
        Sample("docker_run_ms", "bare docker run to its first line, ms", bare),
        Sample("docker_library_run_ms", "the same through the library, ms", library),
        Figure("docker_start_ratio", "cold start / docker run, medians", _ratio(ours, bare)),
        Figure(
            "docker_library_start_ratio", "cold start / library, medians", _ratio(ours, library)
        ),
    ]


def _ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    return round(float(np.median(ours) / np.median(theirs)), 3)


def _cold_ms(runtime: Runtime) -> float:
    """Milliseconds until it answers; its end does not count."""
    began = time.perf_counter()
    with runtime.start(SPEC, {}) as box:
        assert box.run("echo up").output == "up\n"
        return 1e3 * (time.perf_counter() - began)


async def _warm_ms(runtime: Runtime, count: int) -> tuple[float, ...]:
    """Milliseconds of starts, each made while WARM sandboxes are ready."""
    times = []
    async with NodePool(runtime, PoolOptions(slots=2 * WARM)) as pool:
        await pool.warm(SPEC, WARM)
        for _ in range(1 + count):
            await _all_ready(pool)
            began = time.perf_counter()
            status = await pool.start(StartRequest(SPEC))
            times.append(1e3 * (time.perf_counter() - began))
            answer = await pool.call(status.id, "run", command="echo up")
            assert answer.output == "up\n"
            await pool.stop(status.id)
    return tuple(times[1:])


async def _all_ready(pool: NodePool) -> None:
    async with asyncio.timeout(READY_S):
        while (await pool.nodes())[0].ready < WARM:
            await asyncio.sleep(0.01)


def _file_calls(box: BlockingSandbox, count: int) -> list[Finding]:
    files = {f"folder/file{number}": os.urandom(FILE_BYTES) for number in range(FILES)}
    box.write(files)
    snapshots = timed_ms(box.snapshot, count)
    snapshot = box.snapshot()
    restores = timed_ms(lambda: box.restore(snapshot), count)
    assert box.read(f"folder/file{FILES - 1}") == files[f"folder/file{FILES - 1}"]
    resets = []
    for _ in range(count):
        box.run("sleep 99 & echo x > f; x=3")
        began = time.perf_counter()
        box.reset()
        resets.append(1e3 * (time.perf_counter() - began))
        assert box.run("ls; echo $x").output == "\n"
    return [
        Sample("reset_ms", "reset after use, ms", tuple(resets)),
        Sample("snapshot_ms", "snapshot of 10 MB, ms", snapshots),
        Sample("restore_ms", "restore of 10 MB, ms", restores),
    ]
