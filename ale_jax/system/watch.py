"""Everything a person sees of a run, behind one object: progress, metrics, events, trajectories."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ale_jax.algo.algorithm import MismatchHypers
from ale_jax.data.packing import Sample
from ale_jax.model.params import Params
from ale_jax.monitor.events import EventLog
from ale_jax.monitor.metrics import MetricsWriter
from ale_jax.monitor.progress import make_progress
from ale_jax.monitor.trajectories import TrajectorySample, TrajectoryWriter, TurnSample
from ale_jax.records import Trajectory, Turn
from ale_jax.system.crew import Crew
from ale_jax.system.improve import StepReport, figures

EVERY_STEPS = 5  # between two samples of trajectories


class Watch:
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
            self._stack = stack.pop_all()
        self._sampled_tokens = 0
        self._looked = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(*exc)

    def note(self, text: str) -> None:
        self.progress.note(text)

    def warm_start_step(self, step: int, values: dict[str, float]) -> None:
        self.metrics.log(step, values, "sft")
        self.progress.update(step, loss=values["loss"], success=values["probe_success"])

    def rl_step(
        self, report: StepReport, crew: Crew, sampled_tokens: int, gap_limit: float
    ) -> None:
        """gap_limit: a mean learner gap beyond it is an event."""
        now = time.monotonic()
        rate = (sampled_tokens - self._sampled_tokens) / max(now - self._looked, 1e-6)
        self._sampled_tokens, self._looked = sampled_tokens, now
        values = figures(report) | {"tokens_per_second": rate}
        self.metrics.log(report.cursor.step, values, "rl")
        gap = values.get("learner_gap", 0.0)
        if not gap <= gap_limit:  # a NaN is no better
            detail = f"learner and engine differ by {gap:.2g} per token; {gap_limit:g} is much"
            self.events.record("learner_gap", detail, step=report.cursor.step)
        counts = crew.counts
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

    def sample_trajectories(
        self,
        report: StepReport,
        score: Callable[[Params, list[Sample]], list[np.ndarray]],
        hp: MismatchHypers,
    ) -> None:
        """Writes down one success and one failure of a group that has both, with their credit."""
        if report.cursor.step % EVERY_STEPS:
            return
        pair = _contrast(report)
        if not pair:
            return
        scores = score(report.params, [sample for _, sample in pair])
        for (trajectory, sample), logp in zip(pair, scores, strict=True):
            self._trajectories.write(
                _sample_record(report.cursor.step, trajectory, sample, logp, hp)
            )


def _contrast(report: StepReport) -> list[tuple[Trajectory, Sample]]:
    """The first success and the first failure of a group that has both, if there is one.

    Which one goes on with the step: groups stand in the order of the families.
    """
    table, credit = report.made.table, report.made.credit
    members = [
        (int(g), t, Sample.of(t, credit.advantage_NC[n, : table.num_chunks_N[n]], bool(positive)))
        for n, (g, t, positive) in enumerate(
            zip(table.group_N, table.trajectories, credit.positive_N, strict=True)
        )
        if table.valid_N[n] and table.num_chunks_N[n] and np.any(credit.advantage_NC[n])
    ]
    groups = list(dict.fromkeys(g for g, _, _ in members))
    first = report.cursor.step // EVERY_STEPS % max(len(groups), 1)
    for group in groups[first:] + groups[:first]:
        won = [(t, s) for g, t, s in members if g == group and t.episode.reward > 0]
        lost = [(t, s) for g, t, s in members if g == group and t.episode.reward <= 0]
        if won and lost:
            return [won[0], lost[0]]
    return []


def _kept(turn: Turn, hp: MismatchHypers) -> bool:
    """Whether the chunk passes the filter by its own mean of pi_old / mu."""
    ratio = np.exp(np.mean(turn.logp_old - turn.logp_mu))
    return hp.filter_level == "none" or bool(hp.filter_low <= ratio <= hp.filter_high)


def _sample_record(
    step: int, trajectory: Trajectory, sample: Sample, logp: np.ndarray, hp: MismatchHypers
) -> TrajectorySample:
    """logp: of the trajectory's policy tokens, by the weights that the step started from."""
    turns, at = [], 0
    sampled = trajectory.turns[trajectory.given :]
    for turn, advantage in zip(sampled, sample.advantage_C, strict=True):
        now = logp[at : at + len(turn.action_ids)]
        at += len(turn.action_ids)
        turns.append(
            TurnSample(
                prompt=turn.prompt_text,
                action=turn.action_text,
                advantage=float(advantage),
                ratio=float(np.exp(np.mean(now - turn.logp_old))),
                kept=_kept(turn, hp),
                tokens=len(turn.action_ids),
                logp_mean=float(np.mean(now)),
            )
        )
    episode = trajectory.episode
    return TrajectorySample(
        step=step,
        family=episode.slot.task.family,
        seed=episode.slot.task.seed,
        status=episode.status,
        reward=episode.reward,
        start_version=trajectory.start_version,
        trained_version=step - 1,
        turns=tuple(turns),
    )
