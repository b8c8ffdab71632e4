"""The groups of the train loop, from their admission until a step takes them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ale_jax.config.run import RunConfig
from ale_jax.data.journal import Journal
from ale_jax.data.quotas import Quotas
from ale_jax.data.replay import DroppedGroup, Group, GroupSize, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate, age
from ale_jax.errors import RunFailed
from ale_jax.records import RolloutRequest, Task, Trajectory
from ale_jax.system.resampling import Resampler
from ale_jax.system.rollouts.loop import Training
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.tasks import Cursor, GroupStream

Snapshot = Callable[[], dict[str, Any]]  # see Resampler.snapshot

FAILED_STEPS = 20  # so many steps' worth of groups without a valid episode end the run
WAIT_SECONDS = 0.5  # between two checks that the rollouts are still running


class GroupFeed:
    """Groups for the train loop: those that are open, and the buffer in which they arrive.

    gate: bounds their age. The rollout scheduler plays them from the beginning on.
    """

    def __init__(
        self,
        config: RunConfig,
        cursor: Cursor,
        scheduler: RolloutScheduler,
        resampler: Resampler,
        journal: Journal,
        note_dropped: Callable[[DroppedGroup, Task], None],
    ):
        """cursor: of the state that training starts from. note_dropped: called with each group that
        is dropped, and its task, from any thread."""
        rl = config.rl
        self._config, self._first = config, cursor
        self._scheduler, self._resampler, self._journal = scheduler, resampler, journal
        self._note_dropped = note_dropped
        self._dropped: deque[DroppedGroup] = deque()  # since the last report
        quotas = Quotas(cursor.round)
        self.gate = StalenessGate(
            rl.alpha, rl.groups_per_step, cursor.step, rl.max_uses, quotas, rl.redundant_groups
        )
        self._buffer = ReplayBuffer(
            self.gate,
            GroupSize(rl.group_size, rl.redundant_members),
            rl.fill_queue,
            self._drop,
            rl.dynamic_sampling,
            waits=rl.stragglers == "wait",
        )
        self._stream = GroupStream(cursor)
        # To recompute the log-probabilities under the weights that sampled a token, the learner
        # must have them, and none older than the checkpoint's survive an interruption.
        oldest = cursor.step if config.algo.old_logp == "generating" else 0
        versions = range(oldest, cursor.step + 1)
        self._recalled = journal.recall(versions, cursor.is_open, config.train_sampling)
        training = Training(
            self.gate,
            self._stream.take,
            resampler.assign,
            self._recall,
            self._deliver,
            self._buffer.drop_overdue,
            config.train_sampling,
        )
        scheduler.train(training)

    def _recall(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        return self._recalled.take(requests, self.gate)

    def _deliver(self, trajectory: Trajectory) -> bool:
        self._journal.append(trajectory)
        self._resampler.note(trajectory)
        return self._buffer.add(trajectory)

    def _drop(self, group: DroppedGroup) -> None:
        # It was decided at the group's admission, and some groups are dropped before an episode
        # that knows its task has come back.
        task = self._resampler.assign(group.index)[0].key.task
        self._dropped.append(dataclasses.replace(group, family=task.family))
        self._note_dropped(group, task)

    def take_dropped(self) -> tuple[DroppedGroup, ...]:
        """Returns the groups that were dropped since the last call."""
        return tuple(self._dropped.popleft() for _ in range(len(self._dropped)))

    def replay(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Plays episodes beside those of the groups."""
        return self._scheduler.play(requests, self._config.train_sampling)

    def take(self, check_stop: Callable[[], None]) -> list[Group]:
        """Waits for the next step's groups, and returns them. Errors: those of `take_groups`."""

        def check() -> None:
            self._scheduler.check()
            check_stop()

        groups = take_groups(self._buffer, check, self.gate)
        for group in groups:
            for trajectory in group.valid:
                old = age(self.gate.version, trajectory.start_version)
                assert 0 <= old <= self.gate.max_age, (group.index, old, self.gate.max_age)
        return groups

    def publish(self, version: int) -> None:
        """Returns the permits of the groups that weights of this version may begin."""
        self.gate.publish(version)

    def held(self) -> list[Trajectory]:
        """Returns the trajectories of the groups that wait in the buffer."""
        return self._buffer.held()

    def sizes(self) -> dict[str, int]:
        """Counts groups. inflight_groups: admitted and not complete. partial_groups: those of them
        of which some members are back. buffer_size: complete, and waiting for a step; with reuse,
        also for another one."""
        # In this order, so that a group which becomes complete meanwhile is not counted as partial.
        held = {trajectory.episode.key.group for trajectory in self.held()}
        whole = self._buffer.whole()
        return {
            "inflight_groups": self.gate.counts()["in_flight"],
            "partial_groups": len(held.difference(whole)),
            "buffer_size": len(whole),
        }

    def end(self) -> None:
        """Lets the scheduler play no more groups."""
        self._scheduler.train(None)

    def position_after(self, cursor: Cursor, groups: Sequence[Group]) -> tuple[Cursor, Snapshot]:
        """Returns the cursor and the resampler's state after an update on `groups`, for a
        checkpoint."""
        resampler = self._resampler
        with self._scheduler.no_admission():
            open_groups = (*self.gate.outstanding(), *self._stream.left_open)
            next_groups = self._stream.next_groups
            resampler.forget({*open_groups, *self._buffer.whole()})
            resampling = resampler.snapshot(open_groups)
        counts, size = self.gate.counts(), self._config.rl.group_size
        dropped = {
            name: getattr(self._first, name) + counts[name] * size
            for name in (f"dropped_{reason}" for reason in Drop)
        }
        after = dataclasses.replace(
            cursor.after(groups),
            groups=open_groups,
            next_groups=next_groups,
            **dropped,
        )
        return after, resampling


def take_groups(
    buffer: ReplayBuffer, check: Callable[[], None], gate: StalenessGate
) -> list[Group]:
    """Waits for a step's groups, and returns them.

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
