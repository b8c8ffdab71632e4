"""The train loop: take fresh groups, learn from them, publish the new weights."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from ale_jax.data.journal import Journal
from ale_jax.data.replay import DroppedGroup, Group, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate, age
from ale_jax.errors import RunFailed
from ale_jax.learn.critics import CRITICS_WITHOUT_UPDATE
from ale_jax.learn.finite import SKIPPED, SkippedUpdates
from ale_jax.learn.learner import Learner
from ale_jax.learn.step import fresh_batches, train_rollout_logp_diff
from ale_jax.records import RolloutRequest, Task, Trajectory
from ale_jax.system.actors.rollout_scheduler import RolloutScheduler, Training
from ale_jax.system.config import RunConfig
from ale_jax.system.resampling import Resampler
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor, GroupStream

Snapshot = Callable[[], dict[str, Any]]  # see Resampler.snapshot

FAILED_STEPS = 20  # so many steps' worth of groups without a valid episode end the run
WAIT_SECONDS = 0.5  # between two checks that the rollouts are still running
REMEDY = (
    "look at {figures} in metrics.jsonl; lower {section}.learning_rate or clip_norm and start "
    "anew, or let the same command continue from the newest checkpoint"
)
POLICY_REMEDY = REMEDY.format(figures="loss and grad_norm", section="rl_optimizer")
CRITICS_REMEDY = REMEDY.format(
    figures="critic_loss and critic_grad_norm", section="critics.optimizer"
)
LOGP_DIFF_EVERY_STEPS = 5  # the train-rollout log-probability difference costs a forward pass


class RunCallbacks(Protocol):
    """What the train loop asks of the run around it."""

    def save(self, cursor: Cursor, resampling: Snapshot) -> None:
        """Called after every step."""

    def publish(self, version: int) -> None:
        """Hands the new weights and their version to the engine."""

    def report(self, step: StepReport) -> None:
        """Called after every publish."""

    def note_dropped(self, group: DroppedGroup, task: Task) -> None:
        """Called when a group is dropped, from any thread."""

    def check_stop(self) -> None:
        """Raises KeyboardInterrupt if the run should stop; called where nothing is half done."""


@dataclasses.dataclass(frozen=True)
class TrainParts:
    """The components that the train loop joins."""

    config: RunConfig
    learner: Learner
    scheduler: RolloutScheduler
    resampler: Resampler
    journal: Journal
    run: RunCallbacks


def train_loop(cursor: Cursor, parts: TrainParts) -> Cursor:
    """Trains until `rl.steps` updates are made.

    Consumes: the oldest fresh groups of the replay buffer, one step's worth at a time.
    Waits for: that many complete groups.
    Unblocked by: the rollout scheduler, which adds finished episodes to the buffer.

    Errors: RunFailed if updates are not finite (see SkippedUpdates), or groups fail in a row.
    """
    config, learner, resampler = parts.config, parts.learner, parts.resampler
    rollouts, limit = _Rollouts(parts, cursor), config.learn.max_skipped_updates
    skipped = SkippedUpdates(limit, POLICY_REMEDY)
    critics_skipped = SkippedUpdates(limit, CRITICS_REMEDY, "steps of a critic's updates")
    decay_at = config.rl_optimizer.decay_success  # 0: nothing to wait for
    while cursor.step < config.rl.steps:
        start, version = time.monotonic(), cursor.step
        groups = rollouts.take()
        taken = time.monotonic()
        imitated = resampler.imitation(groups, config.algo.gamma)
        made, sums, metrics = learner.learn(groups, imitated, version)
        # The step runs on the device while the host updates the curriculum.
        resampler.learn(groups, version, rollouts.replay)
        metrics |= resampler.figures(groups, version)
        if decay_at and resampler.success_from_start() >= decay_at:
            learner.begin_decay()
            decay_at = 0.0
        # Wait for the step before its weights are published, so that versions and metrics do not
        # depend on when the engine picks up the weights.
        sums = jax.device_get(sums)
        skipped.note(sums, cursor.step + 1)
        # Of a critic's updates of one step, some may be skipped while the others train it.
        if CRITICS_WITHOUT_UPDATE in metrics:
            critics_skipped.note({SKIPPED: metrics[CRITICS_WITHOUT_UPDATE]}, cursor.step + 1)
        if version % LOGP_DIFF_EVERY_STEPS == 0:
            metrics |= rollouts.logp_diff(groups, version)
        cursor, resampling = rollouts.position_after(cursor, groups)
        # Save before the gate frees permits, while nothing of the next version is in flight.
        parts.run.save(cursor, resampling)
        parts.run.publish(cursor.step)
        rollouts.gate.publish(cursor.step)
        seconds, dropped = (taken - start, time.monotonic() - taken), rollouts.take_dropped()
        parts.run.report(StepReport(cursor, groups, made, sums, metrics, *seconds, dropped))
    parts.scheduler.train(None)
    return cursor


class _Rollouts:
    """The rollout side of the loop: the open groups, and the buffer that they arrive in."""

    def __init__(self, parts: TrainParts, cursor: Cursor):
        rl = parts.config.rl
        self._parts, self._first = parts, cursor
        self._dropped: deque[DroppedGroup] = deque()  # since the last report
        self.gate = StalenessGate(rl.alpha, rl.groups_per_step, cursor.step, rl.max_uses)
        self._buffer = ReplayBuffer(
            self.gate,
            rl.group_size,
            rl.fill_queue,
            self._note_dropped,
            rl.dynamic_sampling,
        )
        self._stream = GroupStream(cursor)
        # To recompute the log-probabilities under the weights that sampled a token, the learner
        # must have them, and none older than the checkpoint's survive an interruption.
        oldest = cursor.step if parts.config.algo.old_logp == "generating" else 0
        self._recalled = parts.journal.recall(range(oldest, cursor.step + 1), cursor.is_open)
        training = Training(
            self.gate,
            self._stream,
            parts.resampler.assign,
            self._recall,
            self._deliver,
            self._buffer.drop_overdue,
            parts.config.train_sampling,
        )
        parts.scheduler.train(training)

    def _recall(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        return self._recalled.take(requests, self.gate)

    def _deliver(self, trajectory: Trajectory) -> None:
        self._parts.journal.append(trajectory)
        self._parts.resampler.note(trajectory)
        self._buffer.add(trajectory)

    def _note_dropped(self, group: DroppedGroup) -> None:
        self._dropped.append(group)
        # It was decided at the group's admission, and some groups are dropped before an episode
        # that knows its task has come back.
        task = self._parts.resampler.assign(group.index)[0].key.task
        self._parts.run.note_dropped(group, task)

    def take_dropped(self) -> tuple[DroppedGroup, ...]:
        """The groups that were dropped since the last call."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))

    def replay(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        return self._parts.scheduler.play(requests, self._parts.config.train_sampling)

    def take(self) -> list[Group]:
        """The next step's groups."""
        groups = take_groups(self._buffer, self._check, self.gate)
        for group in groups:
            for trajectory in group.valid:
                old = age(self.gate.version, trajectory.start_version)
                assert 0 <= old <= self.gate.max_age, (group.index, old, self.gate.max_age)
        return groups

    def _check(self) -> None:
        self._parts.scheduler.check()
        self._parts.run.check_stop()

    def logp_diff(self, groups: Sequence[Group], version: int) -> dict[str, float]:
        """The difference between train and rollout log-probabilities under the weights of
        `version`, with which the step began."""
        # Trained groups are often a version old; the buffer holds trajectories of this version.
        known = [*(t for group in groups for t in group.members), *self._buffer.held()]
        batches = fresh_batches(known, version, self._parts.config.learn.shape)
        learner = self._parts.learner
        return train_rollout_logp_diff(batches, [learner.logp(version, each) for each in batches])

    def position_after(self, cursor: Cursor, groups: Sequence[Group]) -> tuple[Cursor, Snapshot]:
        """The cursor and the resampler's state after an update on `groups`, for a checkpoint."""
        resampler = self._parts.resampler
        with self._parts.scheduler.no_admission():
            open_groups = (*self.gate.outstanding(), *self._stream.left_open)
            next_group = self._stream.next_group
            resampler.forget({*open_groups, *self._buffer.whole()})
            resampling = resampler.snapshot(open_groups)
        counts, size = self.gate.counts(), self._parts.config.rl.group_size
        dropped = {
            name: getattr(self._first, name) + counts[name] * size
            for name in (f"dropped_{reason}" for reason in Drop)
        }
        after = dataclasses.replace(
            cursor.after(groups),
            groups=open_groups,
            next_group=next_group,
            **dropped,
        )
        return after, resampling


def take_groups(
    buffer: ReplayBuffer, check: Callable[[], None], gate: StalenessGate
) -> list[Group]:
    """Waits for a step's groups.

    Errors: RunFailed if FAILED_STEPS steps' worth of groups fail in a row; those of `check`.
    """
    check()  # also if the groups are there already
    failed_before = _failed(gate)
    while not (groups := buffer.take(timeout=WAIT_SECONDS)):
        check()
        failed = _failed(gate) - failed_before
        if failed > FAILED_STEPS * gate.groups_per_step:
            raise RunFailed(
                f"{failed} groups in a row had no episode that could be judged: events.jsonl says "
                "how they ended; if by illegal_calls, raise agent.malformed_limit or train the "
                "policy to call its tools first"
            )
    return groups


def _failed(gate: StalenessGate) -> int:
    return gate.counts()[f"dropped_{Drop.FAILED}"]
