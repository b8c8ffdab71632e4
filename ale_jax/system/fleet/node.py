"""A client of a node's pool of sandboxes. Every call ends, whatever happens to the node."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.accounting import Room
from ale_jax.sandbox.pool.machines import Launches
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.fleet.actor import NodeActor, NodeReport

CALLS_AT_ONCE = 10_000
PIECES_AHEAD = 32  # pieces of a stream that may wait to be read
JOIN_S = 1500.0  # its runtime may have to build an image first
CLOSE_S = 20.0
KILL_S = 5.0
RETRY_S = 0.2
MAX_REFUSALS = 3  # requests that could not be delivered, which Ray reports after two seconds each
# Delay before a lost node is tried again: one whose pool has worked, and one whose pool never did.
REJOIN_S, RETRY_JOIN_S = 1.0, 60.0


class NodeLost(SandboxError):
    """The node has gone, or has not answered for so long that it counts as lost."""


class Node:
    """A client of one node. Every call ends: with an answer, or NodeLost.

    silent_seconds: time without any answer after which the node counts as lost. last: its last
    report, initially that of the node's previous pool. joined: set once the node is up, or lost.
    placed: room of the sandboxes started on it since its last report. loss: why the node is lost,
    or None; answers that arrive after the loss are ignored.
    """

    def __init__(
        self,
        node_id: str,
        make_runtime: Callable[[], Launches],
        options: PoolOptions,
        silent_seconds: float,
        last: NodeReport | None = None,
    ):
        self.name, self.placed = options.node, Room()
        self.last = last
        self.joined = asyncio.Event()
        self._has_joined = False
        self._silent_seconds = silent_seconds
        self._last_event = 0
        self.loss: str | None = None
        self._lost_at = 0.0
        self._limits: set[asyncio.Timeout] = set()  # of the calls in progress
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self._actor = (
            ray.remote(NodeActor)
            .options(num_cpus=0, max_concurrency=CALLS_AT_ONCE, scheduling_strategy=place)
            .remote(make_runtime, options)
        )

    @property
    def is_up(self) -> bool:
        return self._has_joined and not self.is_lost

    @property
    def is_lost(self) -> bool:
        return self.loss is not None

    @property
    def lost_for(self) -> float:
        """Seconds since it was lost; 0 if it is not."""
        return time.monotonic() - self._lost_at if self.is_lost else 0.0

    @property
    def may_rejoin(self) -> bool:
        """Whether the node was lost long enough ago to try it again."""
        return self.lost_for > (REJOIN_S if self._has_joined else RETRY_JOIN_S)

    @property
    def capacity(self) -> Room:
        """What its sandboxes may ask for together, as of the last report."""
        s = self.last.status
        return Room(s.slots, s.memory_capacity_mb, s.cpus_capacity, math.inf)

    @property
    def taken(self) -> Room:
        """What its sandboxes ask for, as of the last report, without warm ones, which make room."""
        s = self.last.status
        reported = Room(s.used - s.ready, s.memory_reserved_mb, s.cpus_reserved)
        return reported + self.placed

    async def join(self) -> None:
        """Returns when the node's pool is open. Errors: NodeLost."""
        try:
            async with asyncio.timeout(JOIN_S):
                await self._actor.open.remote()
        except RayTaskError as error:
            raise NodeLost(f"node {self.name} could not join: {error.cause}") from error
        except (RayError, TimeoutError) as error:
            raise NodeLost(f"node {self.name} could not join: {error!r:.500}") from error
        await self.look()
        self._has_joined = True
        self.joined.set()

    async def look(self, held_seconds: float = 0.0) -> NodeReport:
        """Returns the node's report. Errors: NodeLost, if the node died or is silent.

        held_seconds: how long the node delays its answer. While a call is pending, the death of the
        node is noticed at once, because the call fails.

        If this process itself was suspended, that must not look like a lost node. Therefore silence
        is the sum of at least two waits: after a suspension the first one expires before an answer
        can be received, and the second one receives it. Refusals are counted and not timed.
        """
        silence, refusals, patience = 0.0, 0, self._silent_seconds / 2
        while silence < self._silent_seconds and refusals < MAX_REFUSALS:
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(held_seconds + patience):
                    report = await self._actor.report.remote(self._last_event, held_seconds)
            except TimeoutError:
                silence += patience
            except ActorUnavailableError:  # Ray cannot say yet whether it will be back
                refusals += 1
                await asyncio.sleep(RETRY_S)
            except RayError as error:
                raise self._died(error) from error
            else:
                self._check()  # the node may have been lost meanwhile
                self.last = dataclasses.replace(report, asked_at=asked_at)
                self.placed = Room()
                if report.events:
                    self._last_event = report.events[-1].number
                return self.last
            held_seconds = 0.0
        raise NodeLost(f"node {self.name} {'cannot be reached' if refusals else 'is silent'}")

    async def ask(self, seconds: float, method: str, /, *arguments: Any, **named: Any) -> Any:
        """Calls the pool's `method`. seconds: an upper bound on the time that it takes."""
        return await self.tell(seconds, "do", method, *arguments, **named)

    async def tell(
        self, seconds: float | None, method: str, /, *arguments: Any, **named: Any
    ) -> Any:
        """Calls the actor's `method`, and returns or raises what it does. seconds: None: no limit,
        as long as the node is not lost."""
        try:
            async with self._while_there(seconds):
                answer = getattr(self._actor, method).remote(*arguments, **named)
                try:
                    return await answer
                except asyncio.CancelledError:  # or it would go on
                    if not self.is_lost:
                        ray.cancel(answer)
                    raise
        except RayTaskError as error:
            raise error.cause from None
        except TimeoutError as error:
            question = arguments[0] if method == "do" else method
            raise SandboxError(f"node {self.name}: no answer to {question!r}") from error
        except ActorDiedError as error:
            raise self._died(error) from error
        except RayError as error:
            await self._verdict()
            raise SandboxError(f"node {self.name} aborted a call: {error!r:.200}") from error

    async def stream(
        self, method: str, /, *arguments: Any, **named: Any
    ) -> AsyncGenerator[tuple[str, bytes | int], None]:
        """Yields what the actor's `method` yields. Waits for the next piece without a time limit,
        as long as the node is not lost. Closing the iterator ends the job."""
        self._check()
        options = {"num_returns": "streaming", "_generator_backpressure_num_objects": PIECES_AHEAD}
        pieces = getattr(self._actor, method).options(**options).remote(*arguments, **named)
        has_ended = False
        try:
            while (piece := await self._next(pieces)) is not None:
                yield piece
            has_ended = True
        except RayTaskError as error:
            has_ended = True
            raise error.cause from None
        except ActorDiedError as error:
            has_ended = True
            raise self._died(error) from error
        except RayError as error:
            await self._verdict()
            raise SandboxError(f"node {self.name} aborted a stream: {error!r:.200}") from error
        finally:
            if not has_ended and not self.is_lost:
                ray.cancel(pieces)

    def lose(self, reason: str) -> None:
        """Marks the node as lost: from now on every call raises NodeLost, also those in progress.
        The actor is not killed; see `kill`."""
        self.loss, self._lost_at = reason, time.monotonic()
        self.joined.set()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)
        if self.last is not None:
            gone = dataclasses.replace(self.last.status, alive=False)
            self.last = dataclasses.replace(self.last, status=gone)

    async def kill(self) -> None:
        """Kills the actor. Returns within KILL_S even if the call to Ray hangs."""
        # An actor that cannot be reached ends when its connections close.
        with contextlib.suppress(RayError, TimeoutError):
            await bounded(KILL_S, ray.kill, self._actor)

    async def close(self) -> None:
        """Closes the pool and kills its actor. SandboxError if the pool may not have closed."""
        try:
            await self.ask(CLOSE_S, "close")
        finally:
            self.lose("it is closed")
            await self.kill()

    def _died(self, error: RayError) -> NodeLost:
        return NodeLost(f"node {self.name} is lost: {error!r:.500}")

    def _check(self) -> None:
        if self.loss is not None:
            raise NodeLost(self.loss)

    @contextlib.asynccontextmanager
    async def _while_there(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Ends the block with NodeLost as soon as the node is lost, and with TimeoutError after
        `seconds`. A result that arrives after the loss is discarded."""
        self._check()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except (TimeoutError, RayError):
            self._check()
            raise
        finally:
            self._limits.discard(limit)
        self._check()

    async def _next(self, pieces: Any) -> tuple[str, bytes | int] | None:
        async with self._while_there():
            ref = await anext(pieces, None)
            return None if ref is None else await ref

    async def _verdict(self) -> None:
        """Waits until the node has answered a request that was sent after this call, which proves
        that it is alive. Errors: NodeLost, also if no further request is sent."""
        now = time.monotonic()
        while self.last is None or self.last.asked_at <= now:
            self._check()
            if time.monotonic() > now + 2 * self._silent_seconds:
                raise NodeLost(f"node {self.name} cannot be reached")
            await asyncio.sleep(RETRY_S)


async def bounded(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Awaits a blocking call of Ray. Errors: those of the call, and TimeoutError.

    The call runs in a daemon thread, so a call that hangs forever does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(settle: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: answer.done() or settle(value))

    def run() -> None:
        try:
            tell(answer.set_result, function(*arguments))
        except Exception as error:  # passed on to the caller
            tell(answer.set_exception, error)

    threading.Thread(target=run, name="ray-call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer
