"""A node's pool of sandboxes as others see it: every call ends, whatever becomes of the node."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.machines import Launches
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.sandbox_actor import NodeActor, Report

CALLS_AT_ONCE = 10_000
PIECES_AHEAD = 32  # of a stream's, that wait for whoever reads it
JOIN_S = 120.0
CLOSE_S = 20.0
KILL_S = 5.0
RETRY_S = 0.2
REJOIN_S = 60.0


class NodeLost(SandboxError):
    """The node is not there any more, or did not answer for so long that it counts as that."""


class Node:
    """A node as its users see it. Every call ends: with an answer, or NodeLost.

    silent_seconds: without any answer, after which it counts as lost. joined: set once it is up, or
    lost. last: its last report. placed: sandboxes begun on it since then. loss: why it is lost, if
    it is; whatever it says after that is not believed.
    """

    def __init__(
        self,
        node_id: str,
        make_runtime: Callable[[], Launches],
        options: PoolOptions,
        silent_seconds: float,
    ):
        self.name, self.placed = options.node, 0
        self.last: Report | None = None
        self.joined = asyncio.Event()
        self._silent_seconds = silent_seconds
        self.loss: str | None = None
        self._lost_at = 0.0
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self._actor = (
            ray.remote(NodeActor)
            .options(num_cpus=0, max_concurrency=CALLS_AT_ONCE, scheduling_strategy=place)
            .remote(make_runtime, options)
        )

    @property
    def may_rejoin(self) -> bool:
        """It was given up a while ago, and the cluster may still have it."""
        return self.is_lost and time.monotonic() - self._lost_at > REJOIN_S

    @property
    def is_lost(self) -> bool:
        return self.loss is not None

    @property
    def free(self) -> int:
        """Slots that a start may have, as far as is known here."""
        if self.last is None or self.is_lost:
            return 0
        status = self.last.status
        return status.slots - status.used + status.ready - self.placed

    async def join(self) -> None:
        """Returns when its pool is open. Errors: NodeLost."""
        try:
            async with asyncio.timeout(JOIN_S):
                await self._actor.open.remote()
        except (RayError, TimeoutError) as error:
            raise NodeLost(f"node {self.name} could not join: {error!r:.500}") from error
        await self.look()
        self.joined.set()

    async def look(self) -> Report:
        """Errors: NodeLost, if it died or is silent.

        Silence is the sum of two waits or more: had this process stood still itself, the first
        would be over before an answer could be heard.
        """
        silence, patience = 0.0, self._silent_seconds / 2
        while silence < self._silent_seconds:
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(patience):
                    report = await self._actor.report.remote()
                break
            except TimeoutError:
                silence += patience
            except ActorUnavailableError:  # Ray cannot say yet whether it will be back
                await asyncio.sleep(RETRY_S)
                silence += min(time.monotonic() - asked_at, patience)
            except RayError as error:
                raise NodeLost(f"node {self.name} is lost: {error!r:.500}") from error
        else:
            raise NodeLost(f"node {self.name} did not answer for {self._silent_seconds:g} s")
        self.last, self.placed = dataclasses.replace(report, asked_at=asked_at), 0
        return self.last

    async def ask(self, seconds: float, method: str, /, *arguments: Any, **named: Any) -> Any:
        """What the pool's `method` returns or raises. seconds: it surely takes no longer."""
        self._check()
        try:
            async with asyncio.timeout(seconds):
                answer = await self._actor.do.remote(method, *arguments, **named)
        except TimeoutError as error:
            raise SandboxError(f"node {self.name}: no answer to {method!r}") from error
        except RayTaskError as error:
            self._check()
            raise error.cause from None
        except RayError as error:
            await self._verdict()
            raise SandboxError(f"node {self.name} broke off {method!r}: {error!r:.200}") from error
        self._check()
        return answer

    async def stream(self, *arguments: Any, **named: Any) -> AsyncIterator[tuple[str, bytes | int]]:
        """Waits for the next piece as long as the node is there; closing it ends the job."""
        self._check()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": PIECES_AHEAD}
        pieces = self._actor.stream.options(**options).remote(*arguments, **named)
        has_ended = False
        try:
            while (ref := await self._next(pieces)) is not None:
                yield await ref
            has_ended = True
        except RayTaskError as error:
            has_ended = True
            raise error.cause from None
        except RayError as error:
            await self._verdict()
            raise SandboxError(f"node {self.name} broke off a stream: {error!r:.200}") from error
        finally:
            if not has_ended and not self.is_lost:
                ray.cancel(pieces)

    def lose(self, reason: str) -> None:
        """From now on every call raises NodeLost. Its actor is killed, should it still live."""
        self.loss, self._lost_at = reason, time.monotonic()
        self.joined.set()
        if self.last is not None:
            gone = dataclasses.replace(self.last.status, alive=False)
            self.last = dataclasses.replace(self.last, status=gone)

    async def kill(self) -> None:
        """Within KILL_S, whatever becomes of the call: it may hang."""
        # What cannot be reached ends when its connections do.
        with contextlib.suppress(RayError, TimeoutError):
            await bounded(KILL_S, ray.kill, self._actor)

    async def close(self) -> None:
        """Errors: SandboxError, if its pool may not have closed."""
        try:
            await self.ask(CLOSE_S, "close")
        finally:
            self.lose("it is closed")
            await self.kill()

    def _check(self) -> None:
        if self.loss is not None:
            raise NodeLost(self.loss)

    async def _next(self, pieces: Any) -> ray.ObjectRef | None:
        following = asyncio.ensure_future(anext(pieces, None))
        try:
            while not following.done():
                await asyncio.wait([following], timeout=self._silent_seconds)
                self._check()
            return following.result()
        finally:
            following.cancel()

    async def _verdict(self) -> None:
        """Returns when the node has answered a question that is newer than this one. Errors:
        NodeLost, also if nobody asks it any more."""
        now = time.monotonic()
        while self.last is None or self.last.asked_at <= now:
            self._check()
            if time.monotonic() > now + 2 * self._silent_seconds:
                raise NodeLost(f"node {self.name} cannot be reached")
            await asyncio.sleep(RETRY_S)


async def bounded(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a blocking call of Ray's returns. Errors: its own, and TimeoutError.

    Its thread is a daemon: one that hangs for ever does not keep the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(settle: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: answer.done() or settle(value))

    def run() -> None:
        try:
            tell(answer.set_result, function(*arguments))
        except Exception as error:  # for whoever waits
            tell(answer.set_exception, error)

    threading.Thread(target=run, name="ray-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer
