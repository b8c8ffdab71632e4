"""A process that starts many sandboxes concurrently, in order to be killed during the starts.

    python -m benchmarks.sandbox.many_starts RUNTIME COUNT

Its first line of output, once a few are up, is its name as their owner.
"""

from __future__ import annotations

import asyncio
import sys

from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions, closed_at_exit
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(memory_mb=96)
FEW = 4
LIFE_S = 600.0


async def main(runtime: str, count: int) -> None:
    pool = NodePool(
        pick_runtime(runtime, SPEC), PoolOptions(slots=count, memory_mb=count * SPEC.memory_mb)
    )
    async with closed_at_exit(pool):
        starts = [asyncio.ensure_future(pool.start(StartRequest(SPEC))) for _ in range(count)]
        for start in starts[:FEW]:
            await start
        print(Owner.current(), flush=True)
        await asyncio.gather(*starts)
        await asyncio.sleep(LIFE_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
