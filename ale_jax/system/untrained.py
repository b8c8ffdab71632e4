"""Notices steps that leave the policy as it was, and says why."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ale_jax.data.replay import DroppedGroup
from ale_jax.data.staleness import Drop
from ale_jax.monitor.events import NOTHING_TRAINED, Recorder
from ale_jax.system.step_metrics import StepReport

FIRST = 5  # steps in a row of which the first event tells; the next ones after twice as many each
HARDER = "no task is solved: demonstrate more, start closer to the end, or play easier families"
EASIER = "every task is solved: play harder families"


class UntrainedSteps:
    """Records an event once FIRST steps in a row had no gradient. Thread-safe.

    Steps in which only critics learn are not counted, as `critics.warmup_steps` asks for them.
    """

    def __init__(self, groups_per_step: int, record: Recorder):
        self._groups_per_step, self._record = groups_per_step, record
        self._lock = threading.Lock()
        self._steps = self._equal_groups = 0

    def note(self, report: StepReport, values: Mapping[str, Any]) -> None:
        """Counts a finished step. values: its metrics."""
        critics_alone = report.made.batches and not report.updates
        with self._lock:
            self._equal_groups = 0
            self._steps = 0 if values["updates_with_gradient"] else self._steps + 1
            steps = self._steps
        if steps and not critics_alone and _is_due(steps):
            detail = f"{steps} steps in a row had no gradient: {why_untrained(report, values)}"
            self._record(NOTHING_TRAINED, detail, step=report.cursor.step)

    def note_dropped(self, group: DroppedGroup) -> None:
        """Counts a group that no step will use. With `rl.dynamic_sampling`, a step may wait for a
        group of unequal outcomes for ever."""
        if group.reason != Drop.EQUAL:
            return
        with self._lock:
            self._equal_groups += 1
            groups = self._equal_groups
        steps, rest = divmod(groups, self._groups_per_step)
        if not rest and _is_due(steps):
            why = "in each, all episodes earned the same, and rl.dynamic_sampling waits for others"
            self._record(NOTHING_TRAINED, f"{groups} groups in a row had no gradient: {why}")


def _is_due(count: int) -> bool:
    """Whether the count is FIRST, or that times a power of two."""
    times, rest = divmod(count, FIRST)
    return not rest and times.bit_count() == 1


def why_untrained(report: StepReport, values: Mapping[str, Any]) -> str:
    """Returns the likely reason why a step had no gradient, and what can be done about it."""
    earned = (trajectory.episode.reward for trajectory in report.trajectories)
    rewards = [reward for reward in earned if reward is not None]
    if not report.made.batches:
        if min(rewards) < max(rewards):
            return "the advantages are all 0, as in each group all episodes earned the same"
        same = f"all {len(rewards)} episodes of the last one earned {rewards[0]:g}"
        remedy = {0.0: HARDER, 1.0: EASIER}.get(values["success"])
        return f"{same}, and {remedy}"
    if values["skipped_updates"]:
        return "loss or gradient was not finite"
    if values["masked_share"] == 1.0:
        return (
            "the mismatch filter masks every token: compare old_rollout_logp_diff in "
            "metrics.jsonl with algo.mismatch.filter_low and filter_high"
        )
    if values["clipped_share"] == 1.0:
        return "every token is clipped: widen algo.loss.clip_low and clip_high"
    return "the loss weighs nothing that was sampled: see algo.loss.negative_weight"
