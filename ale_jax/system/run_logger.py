"""Everything a person sees of a run, behind one object: progress, metrics, events, trajectories."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.monitor.events import EventLog
from ale_jax.monitor.metrics import MetricsWriter
from ale_jax.monitor.progress import make_progress
from ale_jax.monitor.trajectories import TrajectoryWriter
from ale_jax.system.actors.rollout_workers import RolloutWorkers
from ale_jax.system.compilation import Compilations
from ale_jax.system.step_metrics import StepReport, step_metrics
from ale_jax.system.trajectory_samples import Score, trajectory_samples


class RunLogger:
    """Opens the run's records. What was written after the checkpoint that the run goes on from
    (its RL step; None: there is none) is cut off."""

    def __init__(self, workdir: Path, checkpoint_step: int | None):
        # Without a checkpoint the warm start begins again, and its metrics with it.
        step, phase = (0, None) if checkpoint_step is None else (checkpoint_step, "rl")
        with contextlib.ExitStack() as stack:
            self.events = stack.enter_context(EventLog(workdir))
            self.metrics = stack.enter_context(
                MetricsWriter(workdir, resume_step=step, resume_phase=phase)
            )
            self._trajectories = stack.enter_context(TrajectoryWriter(workdir, resume_step=step))
            self.progress = stack.enter_context(make_progress(sys.stdout))
            self._compilations = stack.enter_context(Compilations(self.progress))
            self._stack = stack.pop_all()
        self._sampled_tokens = 0
        self._looked = time.monotonic()

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(*exc)

    def note(self, text: str) -> None:
        self.progress.note(text)

    def warm_start_step(self, step: int, values: dict[str, float]) -> None:
        self.metrics.log(step, values | self._compile_time(), "sft")
        self.progress.update(step, loss=values["loss"], success=values["probe_success"])

    def rl_step(
        self,
        report: StepReport,
        workers: RolloutWorkers,
        sampled_tokens: int,
        logp_diff_limit: float,
    ) -> None:
        """logp_diff_limit: a mean learner logp_diff beyond it is an event."""
        now = time.monotonic()
        rate = (sampled_tokens - self._sampled_tokens) / max(now - self._looked, 1e-6)
        self._sampled_tokens, self._looked = sampled_tokens, now
        values = step_metrics(report) | {"tokens_per_second": rate} | self._compile_time()
        self.metrics.log(report.cursor.step, values, "rl")
        logp_diff = values.get("train_rollout_logp_diff", 0.0)
        if not logp_diff <= logp_diff_limit:  # a NaN is no better
            detail = (
                f"log-probabilities of learner and engine differ by {logp_diff:.2g} per token, "
                f"more than {logp_diff_limit:g}"
            )
            self.events.record("train_rollout_logp_diff", detail, step=report.cursor.step)
        counts = workers.counts
        self.progress.update(
            report.cursor.step,
            success=values["success"],
            reward=values["reward"],
            loss=values.get("loss"),
            staleness_mean=values["staleness_mean"],
            staleness_max=values["staleness_max"],
            tokens_per_second=rate,
            episodes=report.cursor.episodes,
            sandboxes_up=counts.sandboxes_up,
            sandboxes_busy=counts.sandboxes_busy,
            sandboxes_restarted=counts.sandboxes_restarted,
        )

    def _compile_time(self) -> dict[str, float]:
        """Since the last line of metrics."""
        return {"time/compile_s": self._compilations.take_seconds()}

    def sample_trajectories(self, report: StepReport, score: Score, algo: AlgoConfig) -> None:
        """Writes down what `trajectory_samples` chooses."""
        for sample in trajectory_samples(report, score, algo):
            self._trajectories.write(sample)
