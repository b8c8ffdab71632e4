"""A service that is killed and started again under load: whether its sandboxes stay, and whether
each command is run once."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.node.process import StateDirectory
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from benchmarks.sandbox.findings import Figure, Finding, Sample, say
from benchmarks.sandbox.plan import SPEC, Plan

# A service gives out no more memory than the machine has.
SMALL = dataclasses.replace(SPEC, memory_mb=64)
# A command that is run twice, or not at all, shows in every later answer.
COUNT = "n=$((n + 1)); echo $n"
TOKEN = "benchmark-of-restarts"


class Service:
    """`ale-sandbox serve` with a state directory, as a process that can be killed."""

    def __init__(self, runtime: str, folder: Path, slots: int):
        tokens = folder / "tokens"
        tokens.write_text(f"ann {TOKEN} admin")
        tokens.chmod(0o600)
        words = ["serve", f"--runtime={runtime}", f"--slots={slots}", f"--token-file={tokens}"]
        self._line = [sys.executable, "-m", "ale_jax.sandbox.cli.main", *words]
        self._line.append(f"--state={folder / 'state'}")
        self.url = self._start(0)

    def kill_and_start(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end()
        self._start(int(self.url.rpartition(":")[2]))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _start(self, port: int) -> str:
        line = [*self._line, f"--port={port}"]
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        said = self._process.stdout.readline().split()
        if not said:
            raise SandboxError("the service did not start")
        return said[0]


class Load:
    """Commands at a fixed rate, each in a sandbox that runs no other. counts: commands that were
    answered, by sandbox. wrong: answers that are not the right count. failed: errors."""

    def __init__(self, boxes: list[AsyncRemoteSandbox]):
        self.counts = dict.fromkeys((box.id for box in boxes), 0)
        self.wrong = self.failed = 0
        self.answered_at: list[float] = []
        self._free = collections.deque(boxes)
        self._running: set[asyncio.Task] = set()

    async def play(self, rate: float, over: asyncio.Event) -> None:
        began, number = time.perf_counter(), 0
        while not over.is_set():
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            if self._free:  # otherwise all of them wait for the service
                task = asyncio.ensure_future(self._count(self._free.popleft()))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        await asyncio.gather(*self._running)

    async def _count(self, box: AsyncRemoteSandbox) -> None:
        try:
            output = (await box.run(COUNT)).output
        except SandboxError as error:
            say(f"{box.id}: {error}")
            self.failed += 1
            return
        self.answered_at.append(time.perf_counter())
        self.counts[box.id] += 1
        self.wrong += output != f"{self.counts[box.id]}\n"
        self._free.append(box)


def measure(name: str, plan: Plan) -> list[Finding]:
    with _service(name, plan) as service:
        return asyncio.run(_measure(name, plan, service))


@contextlib.contextmanager
def _service(name: str, plan: Plan) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ale-restart-") as folder:
        service = Service(name, Path(folder), plan.restart_sandboxes)
        try:
            yield service
        finally:
            service.end()
            asyncio.run(StateDirectory(f"{folder}/state").end())


async def _measure(name: str, plan: Plan, service: Service) -> list[Finding]:
    count, rate = plan.restart_sandboxes, plan.restart_rate
    say(f"{name}: {count} sandboxes, {rate:g} commands per second, {plan.restarts} kills")
    async with _boxes(service.url, count) as (client, boxes):
        load, over = Load(boxes), asyncio.Event()
        playing = asyncio.ensure_future(load.play(rate, over))
        began = time.perf_counter()
        kills = [await _restart(service, plan.restart_seconds) for _ in range(plan.restarts)]
        over.set()
        await playing
        rate_seen = len(load.answered_at) / (time.perf_counter() - began)
        outages = tuple(_next(load.answered_at, after=ready) - killed for killed, ready in kills)
        alive = {each.id for each in await client.statuses() if each.cause is None}
        lost = len(load.counts.keys() - alive)
        ends = await asyncio.gather(*(box.run("echo $n") for box in boxes if box.id in alive))
        left = [box.id for box in boxes if box.id in alive]
        wrong = sum(
            end.output != f"{load.counts[id] or ''}\n" for id, end in zip(left, ends, strict=True)
        )
    return [
        Figure("restart_sandboxes", "sandboxes of a service that is killed", count),
        Figure("restart_lost", "of them, lost", lost),
        Figure("restart_commands", "commands answered", sum(load.counts.values())),
        Figure("restart_per_s", "of them, per second, outages included", round(rate_seen, 1)),
        Figure("restart_failed", "commands that failed", load.failed),
        Figure("restart_not_once", "commands not run exactly once", load.wrong + wrong),
        Sample("restart_outage_s", "from the kill to the next answer, s", outages),
    ]


@contextlib.asynccontextmanager
async def _boxes(
    url: str, count: int
) -> AsyncIterator[tuple[AsyncSandboxClient, list[AsyncRemoteSandbox]]]:
    async with AsyncSandboxClient(url, TOKEN) as client:
        yield client, await client.start_many(SMALL, count)


async def _restart(service: Service, seconds: float) -> tuple[float, float]:
    """When the service was killed, and when the next one was ready."""
    await asyncio.sleep(seconds)
    killed_at = time.perf_counter()
    await asyncio.to_thread(service.kill_and_start)
    ready_at = time.perf_counter()
    await asyncio.sleep(seconds)
    return killed_at, ready_at


def _next(times: list[float], after: float) -> float:
    return min(at for at in times if at > after)
