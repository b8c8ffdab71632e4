"""GEM's routes (make, reset, step, close, list): each environment in a sandbox of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from fastapi import APIRouter, Request

from ale_jax.sandbox.api import ExecResult, Expected, Sandbox
from ale_jax.sandbox.pool.api import SandboxGone, SandboxPool, StartRequest, State
from ale_jax.sandbox.service.bodies import ERRORS, Body, By, reply
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Refusal, not_found
from ale_jax.sandbox.spec import SandboxSpec

PREFIX = "/apis/v1/envs/gem"
IDLE_S = 3600.0
MAX_THREADS = 64


class Env(Protocol):
    """An environment in a sandbox. Only one thread uses it at a time."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]: ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    def close(self) -> None: ...


EnvFactory = Callable[[Sandbox], Env]


class MakeBody(Body):
    env_id: str


class GemSandboxBody(Body):
    sandbox_id: str


class ResetBody(GemSandboxBody):
    seed: int = 0


class StepBody(GemSandboxBody):
    action: str


class PoolSandbox:
    """A pool's sandbox as an `api.Sandbox`, for threads other than the pool's."""

    def __init__(self, pool: SandboxPool, id: str, loop: asyncio.AbstractEventLoop):
        self._pool, self._id, self._loop = pool, id, loop

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        return self._call("run", command=command, timeout=timeout)

    def begin(self, command: str) -> None:
        self._call("begin", command=command)

    def send(self, text: str) -> None:
        self._call("send", text=text)

    def expect(self, pattern: str | None = None, timeout: float | None = None) -> Expected:
        return self._call("expect", pattern=pattern, timeout=timeout)

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return self._call("read", path=path, max_bytes=max_bytes)

    def write(self, files: Mapping[str, bytes]) -> None:
        self._call("write", files=dict(files))

    def snapshot(self) -> bytes:
        return self._call("snapshot")

    def restore(self, snapshot: bytes) -> None:
        self._call("restore", snapshot=snapshot)

    def reset(self) -> None:
        self._call("reset")

    def kill_processes(self) -> None:
        self._call("kill_processes")

    def alive(self) -> bool:
        return self._wait(self._pool.status(self._id)).state is State.RUNNING

    def close(self) -> None:
        with contextlib.suppress(SandboxGone):
            self._wait(self._pool.stop(self._id))

    def __enter__(self) -> PoolSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._wait(self._pool.call(self._id, method, **arguments))

    def _wait(self, coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


@dataclasses.dataclass
class _World:
    """turn: held during a step, so that those of one episode are sequential. plays: whether an
    episode is in progress."""

    env: Env
    turn: asyncio.Lock
    plays: bool = False


class Worlds:
    """The environments that were made, by the pool's id of their sandbox."""

    def __init__(self, registry: Mapping[str, EnvFactory], spec: SandboxSpec):
        self._registry, self._spec = registry, spec
        self._worlds: dict[str, _World] = {}
        # A separate executor, because these threads wait for the pool, which needs threads as well.
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="gem")

    async def make(self, by: Caller, env_id: str) -> str:
        """Errors: Refusal (422) for an unknown `env_id`; those of `SandboxPool.start`."""
        factory = self._registry.get(env_id)
        if factory is None:
            known = ", ".join(sorted(self._registry))
            raise Refusal(422, "invalid", f"there is no env_id {env_id!r:.80}: {known:.2000}")
        await self._forget_gone(by)
        id, labels = f"gem-{uuid.uuid4().hex}", {"gem.env": env_id}
        await by.start(StartRequest(self._spec, id=id, labels=labels, idle_seconds=IDLE_S))
        sandbox = PoolSandbox(by.pool, by.pools_id(id), asyncio.get_running_loop())
        try:
            env = await self._in_thread(factory, sandbox)
        except BaseException:
            await by.stop(id)
            raise
        self._worlds[by.pools_id(id)] = _World(env, asyncio.Lock())
        return id

    async def reset(self, by: Caller, id: str, seed: int) -> tuple[str, dict[str, Any]]:
        """Errors: the environment's."""
        world = await self._find(by, id)
        async with world.turn:
            world.plays = False
            begun = await self._in_thread(world.env.reset, seed)
            world.plays = True
            return begun

    async def step(
        self, by: Caller, id: str, action: str
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Errors: Refusal (409) if no episode is in progress; the environment's."""
        world = await self._find(by, id)
        async with world.turn:
            if not world.plays:
                raise Refusal(409, "out_of_turn", "no episode is in progress", "reset it first")
            step = await self._in_thread(world.env.step, action)
            _, _, terminated, truncated, _ = step
            world.plays = not (terminated or truncated)
            return step

    async def close(self, by: Caller, id: str) -> None:
        await by.stop(id)
        await self._forget(by.pools_id(id))

    async def _find(self, by: Caller, id: str) -> _World:
        await by.check(id)
        if (world := self._worlds.get(by.pools_id(id))) is None:
            raise not_found(id)
        return world

    async def _in_thread(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Calls in a thread, because an environment blocks while it waits for its sandbox."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)

    async def _forget_gone(self, by: Caller) -> None:
        known = set(
            self._worlds
        )  # copied first: one that is added while the pool answers is not gone
        alive = {s.id for s in await by.pool.statuses() if s.state is State.RUNNING}
        for id in known - alive:
            await self._forget(id)

    async def _forget(self, id: str) -> None:
        if world := self._worlds.pop(id, None):
            async with world.turn:
                await self._in_thread(world.env.close)


def front(registry: Mapping[str, EnvFactory], spec: SandboxSpec) -> APIRouter:
    """Returns the routes, for `create_app`. registry: env_id -> factory; spec: of the sandboxes."""
    worlds = Worlds(registry, spec)
    router = APIRouter(prefix=PREFIX, tags=["gem"], responses=ERRORS)

    @router.post("/make")
    async def gem_make(body: MakeBody, by: By):
        """Starts a sandbox with that environment: `{"sandbox_id": ...}`."""
        return reply({"sandbox_id": await worlds.make(by, body.env_id)})

    @router.post("/reset")
    async def gem_reset(body: ResetBody, by: By):
        """Starts an episode. The same seed gives the same world."""
        text, info = await worlds.reset(by, body.sandbox_id, body.seed)
        return reply({"observation": text, "info": info})

    @router.post("/step")
    async def gem_step(body: StepBody, by: By):
        """Performs an action. 409 before a reset, and after the end of the episode."""
        step = await worlds.step(by, body.sandbox_id, body.action)
        names = ("observation", "reward", "terminated", "truncated", "info")
        return reply(dict(zip(names, step, strict=True)))

    @router.post("/close")
    async def gem_close(body: GemSandboxBody, by: By):
        """Closes the environment and stops its sandbox."""
        await worlds.close(by, body.sandbox_id)
        return reply({"sandbox_id": body.sandbox_id})

    @router.post("/list")
    async def gem_list(request: Request):
        """Lists every env_id."""
        return reply({"env_id": sorted(registry)})

    return router
