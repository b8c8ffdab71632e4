"""Plays every attack, next to a neighbour whose latency is measured before and during it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time

import numpy as np

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from benchmarks.sandbox.attacks.attack import Arena, Attack, Breach, require_alive
from benchmarks.sandbox.attacks.catalogue import ATTACKS
from benchmarks.sandbox.attacks.resources import RESOURCES
from benchmarks.sandbox.findings import Finding, Trial, say
from benchmarks.sandbox.plan import Plan

# Small, so that an attack on a limit reaches it quickly.
SPEC = SandboxSpec(memory_mb=96, pids=48, files_mb=8, command_seconds=5.0, output_bytes=1000)
LABELS = {"run": "benchmark"}
PAUSE_S = 0.004
FEWEST = 20  # commands that a 95th percentile needs


def measure(name: str, plan: Plan) -> list[Finding]:
    runtime = pick_runtime(name, SPEC)
    with contextlib.ExitStack() as boxes:

        def start() -> BlockingSandbox:
            return boxes.enter_context(runtime.start(SPEC, LABELS))

        arena = Arena(runtime, SPEC, start(), plan.effort)
        neighbour = boxes.enter_context(Neighbour(start()))
        trials: list[Finding] = []
        for attack in ATTACKS:
            trials.append(_try(attack, arena, neighbour, plan.quiet_commands))
            _tell(name, trials[-1])
            try:
                arena.box.reset()
            except SandboxError:
                arena = dataclasses.replace(arena, box=start())
    return trials


class Neighbour:
    """Repeatedly runs a small command in its sandbox, in its own thread.

    wrong: number of wrong answers.
    """

    def __init__(self, box: BlockingSandbox):
        self.wrong = 0
        self._box = box
        self._times: list[tuple[float, float]] = []  # start of each command, and its milliseconds
        self._lost: SandboxError | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._live, name="neighbour")

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._leaving.set()
        self._thread.join()

    def next_p95_ms(self, count: int) -> float:
        """The 95th percentile of the next `count` commands. SandboxLost if its sandbox is lost."""
        first = len(self._times)
        while len(self._times) < first + count:
            if self._lost:
                raise SandboxLost(f"the neighbour: {self._lost}") from self._lost
            time.sleep(PAUSE_S)
        return float(np.percentile([ms for _, ms in self._times[first:]], 95))

    def p95_ms_since(self, began: float) -> float | None:
        """The 95th percentile of the commands since `began`, on the performance counter's clock;
        None if there were fewer than FEWEST."""
        times = [ms for at, ms in self._times if at >= began]
        return float(np.percentile(times, 95)) if len(times) >= FEWEST else None

    def _live(self) -> None:
        number = 0
        while not self._leaving.wait(PAUSE_S):
            number += 1
            began = time.perf_counter()
            try:
                answer = self._box.run(f"echo {number}")
            except SandboxError as error:
                self._lost = error
                return
            self._times.append((began, 1e3 * (time.perf_counter() - began)))
            self.wrong += answer.output != f"{number}\n"


def _try(attack: Attack, arena: Arena, neighbour: Neighbour, quiet_commands: int) -> Trial:
    loads = attack.kind == RESOURCES
    quiet = neighbour.next_p95_ms(quiet_commands) if loads else 0.0
    wrong, began = neighbour.wrong, time.perf_counter()
    survived, seen = _play(attack, arena)
    busy = neighbour.p95_ms_since(began) if loads else None
    neighbour.next_p95_ms(1)
    if neighbour.wrong > wrong:
        survived, seen = False, "the neighbour was answered wrongly"
    ratio = None if busy is None else round(busy / quiet, 2)
    return Trial(attack.name, attack.kind, attack.stopped_by, survived, seen, ratio)


def _play(attack: Attack, arena: Arena) -> tuple[bool, str]:
    """Whether the sandbox survived the attack, and what was seen."""
    try:
        seen = attack.play(arena)
        arena.box.kill_processes()
        require_alive(arena.box)
    except (Breach, SandboxError, OSError) as error:
        return False, f"{type(error).__name__}: {error}"
    return True, seen


def _tell(runtime: str, trial: Trial) -> None:
    ratio = "" if trial.neighbour_ratio is None else f" (neighbour x {trial.neighbour_ratio})"
    verdict = "survived" if trial.survived else "NOT SURVIVED"
    say(f"{runtime}: {trial.kind}: {trial.attack}: {verdict}: {trial.seen}{ratio}")
