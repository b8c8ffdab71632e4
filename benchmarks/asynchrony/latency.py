"""Sandboxes that only let time pass, and the world that is played in them.

They keep the promises of a sandbox that a run relies on: a command takes its time, `close` ends it
at once from any thread, and a closed sandbox is lost.
"""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Mapping

from ale_jax.sandbox.api import ExecResult, JudgedSandbox, SandboxLost
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Limits, Step, World
from ale_jax.worlds.items import EVAL, Item, Seeds
from ale_jax.worlds.replies import Reply
from benchmarks.asynchrony.workloads import TURNS, Draw

NAME = "benchmarks.asynchrony.latency:Latency"
FAMILIES = ("north", "south")  # which are alike
BEGIN, WAIT = "begin", "wait"
BARRIER_S = 120.0  # after which an episode that the others do not join is lost


class Latencies:
    """A runtime, whose sandboxes take the time that `draw` says, times `scale`.

    parties: 0, or the episodes that wait for each other at the end of each turn.
    """

    name = "bubblewrap"  # a run is told of a runtime that it knows
    capabilities: Mapping[str, str] = {"time": "waits"}

    def __init__(self, draw: Draw, scale: float, seed: int, parties: int = 0):
        self._draw, self.scale, self._chance = draw, scale, random.Random(seed)
        self._lock = threading.Lock()
        self.barrier = threading.Barrier(parties) if parties else None

    def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> LatencySandbox:
        return LatencySandbox(self, spec)

    def reap(self) -> int:
        return 0

    def drawn(self) -> tuple[float, ...]:
        """Returns the seconds of an episode's turns, and last its reward."""
        with self._lock:
            turns = self._draw(self._chance)
            return (*(self.scale * turn for turn in turns), float(self._chance.random() < 0.5))


class LatencySandbox:
    """The part of a `JudgedSandbox` that runners and `Latency` use."""

    def __init__(self, runtime: Latencies, spec: SandboxSpec):
        self.spec, self._runtime = spec, runtime
        self._closed = threading.Event()
        self._left: list[float] = []

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        """Begins an episode, or plays its next turn. At the end, the output is its reward."""
        if command == BEGIN:
            self._left = [*self._runtime.drawn()]
            return _told("")
        seconds = self._left.pop(0)
        if self._closed.wait(None if math.isinf(seconds) else seconds):
            raise SandboxLost("the sandbox was closed")
        if self._runtime.barrier:
            self._runtime.barrier.wait(BARRIER_S)
        return _told(str(self._left[0]) if len(self._left) == 1 else "")

    def alive(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        self._closed.set()


def _told(output: str) -> ExecResult:
    return ExecResult(output, 0, timed_out=False, omitted_bytes=0, seconds=0.0)


class Latency(World):
    """Whatever the policy replies, the sandbox takes its time. Evaluations do not wait."""

    families = dict.fromkeys(FAMILIES, Seeds())
    limits = Limits(turns=TURNS)

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        assert sandbox, "the task has one"
        self._sandbox, self._waits = sandbox, item.split != EVAL
        sandbox.run(BEGIN)
        return "Go on."

    def step(self, reply: Reply) -> Step:
        told = self._sandbox.run(WAIT).output if self._waits else "0.0"
        return Step(".", reward=float(told or 0.0), done=bool(told))

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec:
        return dataclasses.replace(spec)
