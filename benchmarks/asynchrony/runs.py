"""Real runs of a workload: all of the product but the sandboxes, and an update that takes as long
as is stated."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ale_jax
from ale_jax.config.run import RunConfig
from ale_jax.configs import quickstart
from ale_jax.learn.learner import Learner
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.monitor.times import TIMES_FILE, Times, read_times
from ale_jax.system.checks import checked_config
from ale_jax.system.controller import Run
from ale_jax.system.simulation.observed import Outcome, TimedStep, observed, timed_steps
from ale_jax.system.simulation.predict import places_of
from ale_jax.system.simulation.run import Setup
from benchmarks.asynchrony import latency
from benchmarks.asynchrony.workloads import Draw
from benchmarks.gateway.scripted import small_tokenizer

REPLY_TOKENS = 4
CONTEXT_TOKENS = 160  # of an episode of five turns
ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Arm:
    """A schedule of a workload, at a `scale` of its time.

    setup: in the workload's seconds. barrier: whether all episodes of a step wait for each other at
    the end of each turn. steps: that are made; the first `warm` ones do not count.
    """

    draw: Draw
    setup: Setup
    scale: float
    steps: int
    warm: int
    barrier: bool = False


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that has ended, in real seconds. steps: those that count. groups: by family, how many
    were trained on, and how many were dropped. cpu_share: cores that its process kept busy."""

    config: RunConfig
    times: Times
    steps: tuple[TimedStep, ...]
    groups: Mapping[str, tuple[int, int]]
    cpu_share: float

    @property
    def outcome(self) -> Outcome:
        return observed(self.times, self.steps, places_of(self.config))

    @property
    def update_seconds(self) -> float:
        """Seconds of the longest update, until its weights are published."""
        return max(step.times.published - step.times.taken for step in self.steps)


def run(arm: Arm, seed: int, folder: Path) -> Finished:
    """Runs an arm in this process."""
    config = config_of(arm, seed, folder)
    parties = arm.setup.places if arm.barrier else 0
    runtime = latency.Latencies(arm.draw, arm.scale, seed, parties)
    pad = _Pad(arm.setup.update_seconds * arm.scale)
    path = Path(tempfile.mkdtemp(dir=folder)) / "run"
    cpu, began = time.process_time(), time.monotonic()
    with _sandboxes(runtime), pad.padded(), path.with_name("printed").open("w") as printed:
        with contextlib.redirect_stdout(printed):
            ale_jax.train(config, path)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    times = read_times(path / TIMES_FILE)
    steps = tuple(each for each in timed_steps(times) if each.times.step > arm.warm)
    return Finished(config, times, steps, _groups(path), share)


def _groups(path: Path) -> dict[str, tuple[int, int]]:
    lines = [each for each in read_metrics(path / METRICS_FILE).records if each["phase"] == "rl"]

    def count(name: str) -> int:
        return round(sum(line.get(name, 0) for line in lines))

    return {
        family: (count(f"trained_groups/{family}"), count(f"stale_groups/{family}"))
        for family in latency.FAMILIES
    }


def config_of(arm: Arm, seed: int, folder: Path) -> RunConfig:
    """Returns the config of an arm, of a very small policy."""
    c, setup = quickstart.get_config("reinforce"), arm.setup
    c.name, c.seed = "latencies", seed
    c.compilation_cache = str(folder / "compiled")
    c.model.update(width=32, num_layers=1, dense_layers=(0,), num_heads=2, num_kv_heads=1)
    c.model.update(head_width=16, mlp_width=48)
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        small_tokenizer().save(tokenizer)
    c.tokenizer.path = str(tokenizer)
    c.worlds.update(train=({"world": latency.NAME, "families": latency.FAMILIES},), held_out=())
    c.worlds.folder = str(ROOT)
    c.warm_start.max_steps = 0
    c.eval.update(tasks=len(latency.FAMILIES), held_out_tasks=0)
    c.checkpoint.every = arm.steps
    c.rl.update(steps=arm.steps, groups_per_step=setup.groups_per_step)
    c.rl.update(group_size=setup.group_size, alpha=setup.alpha, stragglers=setup.stragglers)
    c.rl.update(redundant_groups=setup.redundant_groups)
    c.rl.update(redundant_members=setup.redundant_members)
    c.rollout.update(workers="threads", actors=1, episodes_per_actor=setup.places)
    c.rollout.update(max_reply_tokens=REPLY_TOKENS, runtime=latency.Latencies.name)
    deadline = setup.deadlines.episode_seconds * arm.scale
    c.deadlines.update(turn_seconds=deadline, episode_seconds=deadline)
    c.sandbox.command_seconds = deadline / 2
    pages = CONTEXT_TOKENS // 16
    c.engine.update(max_sequences=setup.places, max_sequence_length=CONTEXT_TOKENS)
    c.engine.update(decode_steps=REPLY_TOKENS, prefill_tokens=(16,), prefill_rows=16)
    c.engine.update(prefill_budget=1024, page_tokens=16, pages=pages * setup.places)
    c.learn.update(microbatch_rows=16, pack_length=512)
    return checked_config(c.to_dict())


@contextlib.contextmanager
def _sandboxes(runtime: latency.Latencies) -> Iterator[None]:
    """Within the block, runs of this process start these sandboxes."""
    with contextlib.ExitStack() as stack:
        for module in ("ale_jax.rollout.worker", "ale_jax.system.start"):
            target = f"{module}.runtime_of_run"
            stack.enter_context(mock.patch(target, lambda *arguments: runtime))
        yield


class _Pad:
    """Lets each update take at least `seconds`, from the moment at which it has its groups until
    its weights are published."""

    def __init__(self, seconds: float):
        self._seconds, self._until = seconds, 0.0

    @contextlib.contextmanager
    def padded(self) -> Iterator[None]:
        with (
            mock.patch.object(Learner, "learn", _after(self._begin, Learner.learn)),
            mock.patch.object(Run, "publish", _after(self._wait, Run.publish)),
        ):
            yield

    def _begin(self) -> None:
        self._until = time.monotonic() + self._seconds

    def _wait(self) -> None:
        time.sleep(max(self._until - time.monotonic(), 0.0))


def _after(first: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(*arguments: Any) -> Any:
        first()
        return call(*arguments)

    return called
