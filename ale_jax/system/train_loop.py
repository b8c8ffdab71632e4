"""The train loop: take fresh groups, learn from them, publish the new weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from ale_jax.config.learn import Shape
from ale_jax.config.run import RunConfig
from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.learn.critics import CRITICS_BROKEN, CRITICS_WITHOUT_UPDATE
from ale_jax.learn.finite import BROKEN, SKIPPED, SkippedUpdates
from ale_jax.learn.learner import Learner
from ale_jax.learn.step import fresh_batches, train_rollout_logp_diff
from ale_jax.monitor.timeline import PUBLISH, SAVE, UPDATE, WAITING
from ale_jax.records import RolloutRequest, Trajectory
from ale_jax.system.group_feed import Snapshot
from ale_jax.system.resampling import Resampler
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor

REMEDY = (
    "look at {figures} in metrics.jsonl; lower {section}.learning_rate or clip_norm and start "
    "anew, or let the same command continue from the newest checkpoint"
)
POLICY_REMEDY = REMEDY.format(figures="loss and grad_norm", section="rl_optimizer")
CRITICS_REMEDY = REMEDY.format(
    figures="critic_loss and critic_grad_norm", section="critics.optimizer"
)
LOGP_DIFF_EVERY_STEPS = 5  # the train-rollout log-probability difference costs a forward pass


class Feed(Protocol):
    """Where the train loop gets its groups from: the rollouts, or a record of them."""

    def take(self, check_stop: Callable[[], None]) -> list[Group]:
        """Waits for the next step's groups, and returns them."""

    def held(self) -> list[Trajectory]:
        """Returns the trajectories of the groups that wait for a step."""

    def sizes(self) -> dict[str, int]:
        """Returns metrics: how many groups are where."""

    def replay(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Plays episodes beside those of the groups."""

    def publish(self, version: int) -> None:
        """Lets groups begin that have waited for this version."""

    def take_dropped(self) -> tuple[DroppedGroup, ...]:
        """Returns the groups that were dropped since the last call."""

    def position_after(self, cursor: Cursor, groups: Sequence[Group]) -> tuple[Cursor, Snapshot]:
        """Returns the cursor and the resampler's state after an update on `groups`."""

    def end(self) -> None:
        """Ends the feed: no more groups are taken."""


class TrainedRun(Protocol):
    """What the train loop asks of the run around it."""

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Keeps what a step was trained on; called before the state after it is saved."""

    def save(self, cursor: Cursor, resampling: Snapshot) -> None:
        """Saves the state; called after every step."""

    def publish(self, version: int) -> float | None:
        """Hands the new weights and their version to the engine. Returns for how many seconds
        engines had lent their devices; None if none ever do."""

    def report(self, step: StepReport) -> None:
        """Reports a step; called after every publish."""

    def lap(self, name: str) -> None:
        """Is told the name of what was done since the last call, when it is done."""

    def check_stop(self) -> None:
        """Raises KeyboardInterrupt if the run should stop; called where nothing is half done."""


def train_loop(
    cursor: Cursor,
    config: RunConfig,
    learner: Learner,
    feed: Feed,
    resampler: Resampler,
    run: TrainedRun,
) -> Cursor:
    """Trains from the state at `cursor` until `rl.steps` steps are made. Returns the last cursor.

    Consumes: the oldest fresh groups of the replay buffer, one step's worth at a time.
    Waits for: that many complete groups, of each domain its own number.
    Unblocked by: the rollout scheduler, which adds finished episodes to the buffer.

    Errors: RunFailed if updates are not finite (see SkippedUpdates), or groups fail in a row.
    """
    limit = config.learn.max_skipped_updates
    skipped = SkippedUpdates(limit, POLICY_REMEDY)
    critics_skipped = SkippedUpdates(limit, CRITICS_REMEDY, "steps of a critic's updates")
    decay_at = config.rl_optimizer.decay_success  # 0: nothing to wait for
    while cursor.step < config.rl.steps:
        start, version = time.monotonic(), cursor.step
        groups = feed.take(run.check_stop)
        taken, sizes = time.monotonic(), feed.sizes()
        run.lap(WAITING)
        imitated = resampler.imitation(groups, config.algo.gamma)
        made, updates, metrics = learner.learn(groups, imitated, version)
        # The step runs on the device while the host updates the curriculum.
        resampler.learn(groups, version, feed.replay)
        metrics |= sizes | resampler.figures(groups, version)
        if decay_at and resampler.success_from_start() >= decay_at:
            learner.begin_decay()
            decay_at = 0.0
        # Wait for the step before its weights are published, so that versions and metrics do not
        # depend on when the engine picks up the weights.
        updates = jax.device_get(updates)
        for sums in updates:
            skipped.note(sums, cursor.step + 1)
        if updates:
            metrics["learning_rate"] = learner.learning_rate()
        # Of a critic's updates of one step, some may be skipped while the others train it.
        if CRITICS_WITHOUT_UPDATE in metrics:
            of_critics = {SKIPPED: CRITICS_WITHOUT_UPDATE, BROKEN: CRITICS_BROKEN}
            found = {name: metrics[figure] for name, figure in of_critics.items()}
            critics_skipped.note(found, cursor.step + 1)
        if version % LOGP_DIFF_EVERY_STEPS == 0:
            # Trained groups are often a version old; the buffer holds trajectories of this version.
            known = [*(t for group in groups for t in group.members), *feed.held()]
            metrics |= _logp_diff(known, version, learner, config.learn)
        cursor, resampling = feed.position_after(cursor, groups)
        run.lap(UPDATE)
        # Save before the gate frees permits, while nothing of the next version is in flight.
        run.keep(cursor.step, groups)
        run.save(cursor, resampling)
        run.lap(SAVE)
        lent = run.publish(cursor.step)
        feed.publish(cursor.step)
        seconds, dropped = (taken - start, time.monotonic() - taken), feed.take_dropped()
        run.lap(PUBLISH)
        run.report(StepReport(cursor, groups, made, updates, metrics, *seconds, dropped, lent))
    feed.end()
    return cursor


def _logp_diff(
    trajectories: Sequence[Trajectory], version: int, learner: Learner, shape: Shape
) -> dict[str, float]:
    """Compares learner and engine under the weights of `version`, with which the step began."""
    batches = fresh_batches(trajectories, version, shape)
    return train_rollout_logp_diff(batches, [learner.logp(version, each) for each in batches])
