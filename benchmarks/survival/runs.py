"""Starts runs as a user does, each in a session of its own, and ends all that they started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from ale_jax.sandbox import cgroups
from benchmarks.launching import interruptible
from benchmarks.survival import evidence
from benchmarks.survival.plan import ALGORITHM, DEADLINES, GRACE_S, LEARNS, NO_SANDBOXES, SMOKE
from benchmarks.survival.processes import MARK, Family

ROOT = Path(__file__).parents[2]
SITE = ROOT / "benchmarks" / "worker_site"
WORKER_MODULE = "ALE_WORKER_MODULE"  # what SITE lets each Ray worker import
QUICK_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
POLL_S = 0.02
START_S = 240.0  # a run that has made no step by then, without any fault, is no measurement
EARLY_S = 15.0  # moments during the start, until the first step is made, are drawn from these
EARLY_SHARE = 0.2


class NoMeasurement(RuntimeError):
    """A run did not do, without any fault, what the measurement needs."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where the runs are. At the end, also by SIGTERM, they are killed and it is removed."""

    folder: Path
    runs: list[Run]

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Bench]:
        with interruptible():
            # Directly below /tmp, as the names of Ray's sockets below it may have 107 bytes.
            folder = Path(tempfile.mkdtemp(prefix="ale-", dir="/tmp"))
            bench = cls(folder, [])
            try:
                yield bench
            finally:
                bench.end_runs()
                with contextlib.suppress(cgroups.CgroupsUnavailable):
                    cgroups.find().reap()
                shutil.rmtree(folder)

    def end_runs(self) -> None:
        """Those that still go on, for example after a measurement that has failed."""
        for run in self.runs:
            run.end()

    def run(
        self,
        name: str,
        *options: str,
        config: str = SMOKE,
        fault: str = "",
    ) -> Run:
        """A run that is not started yet, in a folder of that name, whose config is `config` with
        `options`. fault: of the launcher; empty: the product's own launcher."""
        program = ["benchmarks.survival.launcher", fault] if fault else ["ale_jax.launch"]
        line = [sys.executable, "-m", *program, f"--config={config}"]
        line += [f"--workdir={self.folder / name}", f"--config.checkpoint.keep={evidence.KEEP}"]
        line += [f"--config.checkpoint.grace_seconds={GRACE_S}", *_deadlines()]
        line += ["--config.rollout.workers=ray"]  # so that a worker can be killed
        line += [f"--config.compilation_cache={self.folder / 'compiled'}", *options]
        run = Run(self.folder / name, line, self._environment(name))
        self.runs.append(run)
        return run

    def plain(self, name: str, *options: str, fault: str = "") -> Run:
        """A small run without sandboxes."""
        return self.run(name, *LEARNS, *NO_SANDBOXES, *options, fault=fault)

    def _environment(self, name: str) -> dict[str, str]:
        known = [each for each in [os.environ.get("PYTHONPATH")] if each]
        path = os.pathsep.join([str(SITE), str(ROOT), *known])
        own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILE, "PYTHONPATH": path}
        own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        own |= {"RAY_TMPDIR": str(self.folder), MARK: str(self.folder / f"{name}.{uuid.uuid4()}")}
        return dict(os.environ) | own


def _deadlines() -> list[str]:
    return [f"--config.deadlines.{name}={value}" for name, value in DEADLINES.items()]


class Run:
    """One run, whose process may be started several times.

    line: its command. variables: its environment. mark: a file beside its folder, for what happens
    in it.
    """

    def __init__(self, folder: Path, line: list[str], variables: dict[str, str]):
        self.folder, self.line, self.variables = folder, line, variables
        self.mark = Path(variables[MARK])
        self.family = Family(variables[MARK])
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal = self.mark.with_name(f"{self.mark.name}.terminal")
        self._printed_before = 0

    def start(self) -> None:
        self._printed_before = len(self._output())
        with self._terminal.open("ab") as terminal:
            self._process = subprocess.Popen(
                self.line,
                cwd=ROOT,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """To the run's own process, and to no other."""
        if self.code is None:
            self._process.send_signal(number)

    def printed(self) -> str:
        """What this start has printed."""
        return self._output()[self._printed_before :]

    def last_line(self) -> str:
        lines = [line.strip() for line in self.printed().splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def step(self) -> int:
        return evidence.newest_step(self.folder)

    def trains(self) -> bool:
        """Whether this start has come to its training steps."""
        return f"] {ALGORITHM}: " in self.printed()

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Waits until the condition holds, the process ends, or time is over; whether it held."""
        deadline = time.monotonic() + limit_s
        while not (held := condition()) and self.code is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return held

    def require(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for what must happen without a fault. NoMeasurement if it does not."""
        if not self.until(condition, START_S):
            raise NoMeasurement(f"{self.folder.name}: {what}: {self.code}, {self.last_line()!r}")

    def require_steps(self, count: int) -> None:
        """Waits for so many further steps."""
        wanted = self.step() + count
        self.require(lambda: self.step() >= wanted, f"it did not make step {wanted}")

    def finish(self, limit_s: float = START_S) -> int | None:
        """The exit code; None if it did not end in time."""
        self.until(lambda: False, limit_s)
        return self.code

    def stop(self, limit_s: float) -> int | None:
        """SIGTERM, as a job scheduler sends it; the exit code, None if it did not end in time."""
        self.send(signal.SIGTERM)
        return self.finish(limit_s)

    def wait_for_random_moment(self, chance: random.Random, window_s: float) -> None:
        """Either within the start, or within `window_s` of the first step that this start makes.
        Returns early if the run ends by itself."""
        if chance.random() < EARLY_SHARE:
            self.until(lambda: False, chance.uniform(0.0, EARLY_S))
            return
        self.until(self.trains, START_S)
        made = self.step()
        self.until(lambda: self.step() > made, START_S)
        self.until(lambda: False, chance.uniform(0.0, window_s))

    def end(self) -> int:
        """Kills all its processes, also orphans; returns how many there were."""
        ended = self.family.end()
        if self._process is not None:
            self._process.wait()
        return ended

    def _output(self) -> str:
        # Text that a run prints may be cut anywhere by its death.
        return self._terminal.read_text(errors="replace") if self._terminal.exists() else ""


def continue_from(source: Path, run: Run) -> Run:
    """`run`, but its folder holds a copy of `source`, with other steps between checkpoints."""
    shutil.copytree(source, run.folder, dirs_exist_ok=True)
    run.line.append("--resume")
    return run
