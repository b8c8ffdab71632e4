"""A root on disk: installing a large package, checking out many files, and copying what results."""

from __future__ import annotations

import asyncio
import ensurepip
import shutil
import time
from pathlib import Path

from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import WORK, SandboxSpec
from benchmarks.sandbox.findings import Figure, Finding, Sample, say
from benchmarks.sandbox.plan import Plan

SPEC = SandboxSpec(
    user="root", disk_mb=2048, memory_mb=2048, pids=256, files_mb=64, command_seconds=600.0
)
OPTIONS = PoolOptions(slots=8, snapshot_mb=16 << 10)
WHEEL = "big-1.0-py3-none-any.whl"
# Random data, so that the wheel is as large as what it installs.
MAKE_WHEEL = f"""
import os, zipfile
files = {{f"big/data{{n}}.bin": os.urandom(1 << 20) for n in range(100)}}
files["big/__init__.py"] = b"ANSWER = 42"
files["big-1.0.dist-info/METADATA"] = b"Metadata-Version: 2.1\\nName: big\\nVersion: 1.0\\n"
files["big-1.0.dist-info/WHEEL"] = b"Wheel-Version: 1.0\\nTag: py3-none-any\\n"
files["big-1.0.dist-info/RECORD"] = "".join(f"{{name}},,\\n" for name in files).encode()
with zipfile.ZipFile("{WHEEL}", "w") as wheel:
    for name, content in files.items():
        wheel.writestr(name, content)
"""
FILES = 50_000
LINES = 50 * FILES
MAKE_REPOSITORY = f"""
import os
for n in range({FILES}):
    if n % 500 == 0:
        os.makedirs(f"repository/{{n // 500}}")
    with open(f"repository/{{n // 500}}/{{n}}.txt", "w") as file:
        file.write(f"line {{n}}\\n" * 50)
"""
GIT = f"{WORK}/git -c user.name=me -c user.email=me@localhost -c init.defaultBranch=main"


def measure(name: str, plan: Plan) -> list[Finding]:
    if name != "bubblewrap":
        return []  # only bubblewrap has roots on disk
    return asyncio.run(_measure(plan.file_calls))


async def _measure(count: int) -> list[Finding]:
    async with NodePool(pick_runtime("bubblewrap", SPEC), OPTIONS) as pool:
        (await _started(pool)), (await _started(pool))  # the first ones unpack the image
        box = (await pool.start(StartRequest(SPEC))).id
        say(f"disk: a wheel of 100 MB and a checkout of {FILES} files")
        work = await _fill(pool, box)
        at_once = await _fork_ms(pool, box)
        say(f"disk: {count} starts, snapshots, forks, restores and resets")
        info = await pool.snapshot(box)
        rounds = [await _round(pool, box, info.id) for _ in range(count)]
        columns = dict(zip(rounds[0], zip(*(each.values() for each in rounds)), strict=True))
        return [
            *(Figure(key, text, round(value, 2)) for key, text, value in work),
            Figure("disk_fork_at_once_ms", "fork right after writing all that, ms", at_once),
            Figure("disk_snapshot_mb", "what such a snapshot holds, MB", info.bytes >> 20),
            *(Sample(f"disk_{what}_ms", f"{what} of it, ms", ms) for what, ms in columns.items()),
        ]


async def _fill(pool: NodePool, box: str) -> list[tuple[str, str, float]]:
    pip = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    programs = {"pip.whl": pip.read_bytes(), "git": Path(shutil.which("git")).read_bytes()}
    await pool.call(box, "write", files=programs)
    await _run(pool, box, f"chmod 755 git; python3 -c '{MAKE_WHEEL}'")
    install = f"python3 pip.whl/pip install -q --no-index --break-system-packages {WHEEL}"
    pip_s = await _run(
        pool, box, f"{install} && cd / && python3 -c 'import big; assert big.ANSWER'"
    )
    make = f"cd {WORK}; python3 -c '{MAKE_REPOSITORY}'; cd repository; {GIT} init -q"
    await _run(pool, box, f"{make} && {GIT} add . && {GIT} commit -qm all")
    await _run(pool, box, f"rm -r {WORK}/repository/[0-9]*")
    git_s = await _run(pool, box, f"{GIT} checkout -q . && test $(cat */*.txt | wc -l) = {LINES}")
    return [
        ("disk_pip_s", "pip install of a wheel of 100 MB, s", pip_s),
        ("disk_checkout_s", f"git checkout of {FILES} files, s", git_s),
    ]


async def _run(pool: NodePool, box: str, command: str) -> float:
    began = time.perf_counter()
    result = await pool.call(box, "run", command=command)
    if result.exit_code:
        raise RuntimeError(f"{command!r:.80} failed: {result.output[-500:]}")
    return time.perf_counter() - began


async def _started(pool: NodePool) -> float:
    began = time.perf_counter()
    box = (await pool.start(StartRequest(SPEC))).id
    await _run(pool, box, "true")
    milliseconds = 1e3 * (time.perf_counter() - began)
    await pool.stop(box)
    return milliseconds


async def _fork_ms(pool: NodePool, box: str) -> float:
    began = time.perf_counter()
    (fork,) = await pool.fork(box, 1)
    await _run(pool, fork.id, f"test -s {WORK}/repository/99/49999.txt")
    milliseconds = 1e3 * (time.perf_counter() - began)
    await pool.stop(fork.id)
    return round(milliseconds, 1)


async def _round(pool: NodePool, box: str, snapshot: str) -> dict[str, float]:
    times = {"start": await _started(pool)}
    began = time.perf_counter()
    await pool.snapshot(box)
    times["snapshot"] = 1e3 * (time.perf_counter() - began)
    times["fork"] = await _fork_ms(pool, box)
    for what, call in (
        ("reset", lambda: pool.call(box, "reset")),
        ("restore", lambda: pool.restore(box, snapshot)),
    ):
        began = time.perf_counter()
        await call()
        times[what] = 1e3 * (time.perf_counter() - began)
    await _run(pool, box, f"test -s {WORK}/repository/99/49999.txt")
    return times
