"""Latency of a command in a session: in process, through a Ray actor, and over HTTP; and of
`docker exec`, which has no session."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator

from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.system.actors.cluster import ray_cluster
from ale_jax.system.fleet.fleet import Fleet
from benchmarks.sandbox import bare_docker
from benchmarks.sandbox.findings import Finding, Sample, say, timed_ms, timed_ms_later
from benchmarks.sandbox.plan import SPEC, Plan

LEAVE_S = 30.0


def measure(name: str, plan: Plan) -> list[Finding]:
    say(f"{name}: {plan.commands} commands in process, through Ray, over HTTP")
    with pick_runtime(name, SPEC).start(SPEC, {}) as box:
        here = timed_ms(lambda: box.run("true"), plan.commands)
    with ray_cluster(actors=1):
        far = asyncio.run(_through_ray(name, plan.commands))
    with service(name) as url, SandboxClient(url) as client, client.start(SPEC) as remote:
        over_http = timed_ms(lambda: remote.run("true"), plan.commands)
    return [
        *(_docker_exec(plan.peer_commands) if name == "docker" else []),
        Sample("session_ms_inprocess", "session command, in process, ms", here),
        Sample("session_ms_ray", "session command, Ray actor, ms", far),
        Sample("session_ms_http", "session command, HTTP, ms", over_http),
    ]


def _docker_exec(count: int) -> list[Finding]:
    times = bare_docker.exec_ms(SPEC.image, count)
    return [Sample("docker_exec_ms", "docker exec for each command, ms", times)]


async def _through_ray(name: str, count: int) -> tuple[float, ...]:
    make_runtime = functools.partial(pick_runtime, name, SPEC)
    async with Fleet(make_runtime, PoolOptions(slots=1)) as fleet:
        id = (await fleet.start(StartRequest(SPEC))).id
        return await timed_ms_later(lambda: fleet.call(id, "run", command="true"), count)


@contextlib.contextmanager
def service(runtime: str) -> Iterator[str]:
    """The URL of a service in a separate process."""
    line = [sys.executable, "-m", "ale_jax.sandbox.cli.main", "serve", "--port=0"]
    # In a new session, so that an interrupt at the terminal reaches only this process, which then
    # stops the service in order.
    process = subprocess.Popen(
        [*line, f"--runtime={runtime}"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        url, _, rest = process.stdout.readline().partition(" ")
        if not rest:
            raise RuntimeError(f"the service did not start: it said {url!r}")
        yield url
    finally:
        process.terminate()
        process.wait(LEAVE_S)
        process.stdout.close()
