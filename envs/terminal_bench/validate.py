"""Checks that tasks in terminal-bench's format can be solved, and not by doing nothing.

python -m ale_jax.envs.terminal_bench.validate FOLDER --runtime=auto --exclude=4,5 --workers=2
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ale_jax.agent.api import NoVerdictError, VerifierError
from ale_jax.envs.terminal_bench.env import SPEC, score
from ale_jax.envs.terminal_bench.task import TerminalBenchTask, read_tasks
from ale_jax.sandbox.api import Runtime, SandboxError, SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a task. oracle, nop: rewards, or None without a verdict, with the reason in
    `trouble`. seconds: of the oracle's episode, from the start of its sandbox to its end."""

    task: str
    oracle: float | None
    nop: float | None
    seconds: float
    trouble: str

    @property
    def sound(self) -> bool:
        return self.oracle == 1.0 and self.nop == 0.0


def check(runtime: Runtime, task: TerminalBenchTask) -> Outcome:
    """Plays the task twice, each time in a new sandbox."""
    start = time.monotonic()
    oracle, first = _play(runtime, task, oracle=True)
    seconds = time.monotonic() - start
    nop, second = _play(runtime, task, oracle=False)
    return Outcome(task.name, oracle, nop, seconds, first or second)


def _play(runtime: Runtime, task: TerminalBenchTask, oracle: bool) -> tuple[float | None, str]:
    try:
        with runtime.start(SPEC, {"role": "validate"}) as sandbox:
            return score(task, sandbox, oracle), ""
    except (SandboxError, VerifierError, NoVerdictError) as error:
        return None, f"{'oracle' if oracle else 'nop'}: {error}"


def table(outcomes: list[Outcome]) -> str:
    rows = ["task              oracle       nop   seconds"]
    for each in outcomes:
        oracle, nop = ("-" if r is None else f"{r:g}" for r in (each.oracle, each.nop))
        verdict = "" if each.sound else f"  UNSOUND {each.trouble}"
        rows.append(f"{each.task:<18}{oracle:>6}{nop:>10}{each.seconds:>10.2f}{verdict}")
    return "\n".join(rows)


def summary(outcomes: list[Outcome], runtime: str) -> dict[str, object]:
    seconds = sorted(each.seconds for each in outcomes)
    return {
        "runtime": runtime,
        "tasks": len(outcomes),
        "oracle": sum(each.oracle == 1.0 for each in outcomes),
        "nop": sum(each.nop != 0.0 for each in outcomes if each.nop is not None),
        "no_verdict": sum(None in (each.oracle, each.nop) for each in outcomes),
        "episode_s_p50": round(statistics.median(seconds), 3),
        "episode_s_p95": round(seconds[int(0.95 * (len(seconds) - 1))], 3),
    }


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 1 if a task is unsound, or has no verdict."""
    parser = argparse.ArgumentParser(prog="python -m ale_jax.envs.terminal_bench.validate")
    parser.add_argument("folder", type=Path, help="holds the folders of the tasks")
    parser.add_argument("--runtime", default="auto", help="auto, docker or bubblewrap")
    parser.add_argument("--exclude", default="", help="names of tasks to leave out: 4,5,9")
    parser.add_argument("--workers", type=int, default=2, help="tasks at the same time")
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error(f"--workers {args.workers} must be at least 1")
    try:
        tasks = read_tasks(args.folder, [name for name in args.exclude.split(",") if name])
        runtime = pick_runtime(args.runtime, SPEC)
        with ThreadPoolExecutor(args.workers) as pool:
            outcomes = list(pool.map(lambda task: check(runtime, task), tasks))
    except (ValueError, SandboxStartError) as error:
        parser.error(str(error))
    print(table(outcomes))
    print(json.dumps(summary(outcomes, runtime.name)))
    return 0 if all(each.sound for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
