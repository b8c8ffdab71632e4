"""The train loop: take fresh groups, learn from them, publish the new weights."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax

from ale_jax.data.replay import Group, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate, age
from ale_jax.learn.learner import Learner
from ale_jax.learn.state import TrainState
from ale_jax.learn.step import fresh_batches, train_rollout_logp_diff
from ale_jax.model.params import Params
from ale_jax.records import RolloutRequest, Trajectory
from ale_jax.system.actors.rollout_scheduler import RolloutScheduler, Training
from ale_jax.system.config import RunConfig
from ale_jax.system.resampling import Resampler
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor, GroupStream

FAILED_STEPS = 20  # so many steps' worth of groups without a valid episode end the run
WAIT_SECONDS = 0.5  # between two checks that the rollouts are still running
LOGP_DIFF_EVERY_STEPS = 5  # the train-rollout log-probability difference costs a forward pass


@dataclasses.dataclass(frozen=True)
class TrainParts:
    """The components that the train loop joins.

    publish: hands new weights and their version to the engine.
    save: called after every step with the new state. report: called after every publish.
    """

    config: RunConfig
    learner: Learner
    scheduler: RolloutScheduler
    resampler: Resampler
    publish: Callable[[Params, int], None]
    save: Callable[[TrainState, Cursor], None]
    report: Callable[[StepReport], None]


def train_loop(state: TrainState, cursor: Cursor, parts: TrainParts) -> tuple[TrainState, Cursor]:
    """Trains until `rl.steps` updates are made.

    Consumes: the oldest fresh groups of the replay buffer, one step's worth at a time.
    Waits for: that many complete groups.
    Unblocked by: the rollout scheduler, which adds finished episodes to the buffer.
    """
    config, learner, resampler = parts.config, parts.learner, parts.resampler
    rollouts = _Rollouts(parts, cursor)
    while cursor.step < config.rl.steps:
        start, params, version = time.monotonic(), state.params, cursor.step
        groups = rollouts.take()
        taken = time.monotonic()
        imitated = resampler.imitation(groups, config.algo.gamma)
        state, made, sums, metrics = learner.learn(state, groups, imitated, version)
        # The step runs on the device while the host updates the curriculum.
        resampler.learn(groups, version, rollouts.replay)
        metrics |= resampler.figures(groups, version)
        # Wait for the step before its weights are published, so that versions and metrics do not
        # depend on when the engine picks up the weights.
        sums = jax.device_get(sums)
        if version % LOGP_DIFF_EVERY_STEPS == 0:
            metrics |= rollouts.logp_diff(groups, params, version)
        cursor = rollouts.cursor_after(cursor, groups)
        # Save before the gate frees permits, while nothing of the next version is in flight.
        parts.save(state, cursor)
        parts.publish(state.params, cursor.step)
        rollouts.gate.publish(cursor.step)
        seconds = taken - start, time.monotonic() - taken
        parts.report(StepReport(cursor, groups, made, sums, metrics, *seconds))
    parts.scheduler.train(None)
    return state, cursor


class _Rollouts:
    """The rollout side of the loop: the open groups, and the buffer that they arrive in."""

    def __init__(self, parts: TrainParts, cursor: Cursor):
        rl = parts.config.rl
        self._parts, self._first = parts, cursor
        self.gate = StalenessGate(rl.alpha, rl.groups_per_step, version=cursor.step)
        self._buffer = ReplayBuffer(self.gate, rl.group_size, rl.max_uses, rl.fill_queue)
        self._stream = GroupStream(cursor)
        sampling, assign = parts.config.train_sampling, parts.resampler.assign
        parts.scheduler.train(Training(self.gate, self._stream, assign, self._deliver, sampling))

    def _deliver(self, trajectory: Trajectory) -> None:
        self._parts.resampler.note(trajectory)
        self._buffer.add(trajectory)

    def replay(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        return self._parts.scheduler.play(requests, self._parts.config.train_sampling)

    def take(self) -> list[Group]:
        """The next step's groups."""
        groups = take_groups(self._buffer, self._parts.scheduler, self.gate)
        for group in groups:
            for trajectory in group.valid:
                old = age(self.gate.version, trajectory.start_version)
                assert 0 <= old <= self.gate.max_age, (group.index, old, self.gate.max_age)
        return groups

    def logp_diff(self, groups: Sequence[Group], params: Params, version: int) -> dict[str, float]:
        """The difference between train and rollout log-probabilities under the same weights."""
        # Trained groups are often a version old; the buffer holds trajectories of this version.
        known = [*(t for group in groups for t in group.members), *self._buffer.held()]
        batches = fresh_batches(known, version, self._parts.config.learn.shape)
        learner = self._parts.learner
        return train_rollout_logp_diff(batches, [learner.logp(params, each) for each in batches])

    def cursor_after(self, cursor: Cursor, groups: Sequence[Group]) -> Cursor:
        """The cursor after an update on `groups`, as a checkpoint stores it."""
        config, resampler = self._parts.config, self._parts.resampler
        with self._parts.scheduler.no_admission():
            open_groups = (*self.gate.outstanding(), *self._stream.left_open)
            next_group = self._stream.next_group
            resampler.forget({*open_groups, *self._buffer.whole()})
            # This holds all experts and is large, so it is built only for a checkpoint.
            saved = config.checkpoint.is_due(cursor.step + 1, config.rl.steps)
            resampling = resampler.to_json(open_groups) if saved else None
        dropped, size = self.gate.counts(), config.rl.group_size
        return dataclasses.replace(
            cursor.after(groups),
            groups=open_groups,
            next_group=next_group,
            dropped_stale=self._first.dropped_stale + dropped[f"dropped_{Drop.STALE}"] * size,
            dropped_failed=self._first.dropped_failed + dropped[f"dropped_{Drop.FAILED}"] * size,
            resampling=resampling,
        )


def take_groups(
    buffer: ReplayBuffer, scheduler: RolloutScheduler, gate: StalenessGate
) -> list[Group]:
    """Waits for a step's groups.

    Errors: RuntimeError if FAILED_STEPS steps' worth of groups fail in a row; the errors of the
    scheduler's `check`.
    """
    failed_before = _failed(gate)
    while not (groups := buffer.take(timeout=WAIT_SECONDS)):
        scheduler.check()
        failed = _failed(gate) - failed_before
        if failed > FAILED_STEPS * gate.groups_per_step:
            raise RuntimeError(
                f"{failed} groups in a row had no episode that could be judged: events.jsonl says "
                "how they ended; if by illegal_calls, raise agent.malformed_limit or train the "
                "policy to call its tools first"
            )
    return groups


def _failed(gate: StalenessGate) -> int:
    return gate.counts()[f"dropped_{Drop.FAILED}"]
