"""The learner's loop: reinforcement from groups of episodes, weights published at each step."""

from __future__ import annotations

import dataclasses
import itertools
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.algo.histogram import ratio_figures
from ale_jax.data.replay import Group, ReplayBuffer
from ale_jax.data.staleness import Drop, StalenessGate, age
from ale_jax.learn.credit import Step
from ale_jax.learn.gap import fresh_batches, learner_gap
from ale_jax.learn.learner import Learner
from ale_jax.learn.router import router_figures
from ale_jax.learn.state import TrainState
from ale_jax.model.compute import sampling_weights
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.records import Assignment, Trajectory
from ale_jax.rollout.engine import Engine
from ale_jax.system.config import RunConfig
from ale_jax.system.pump import Pump, Training
from ale_jax.system.resampling import Resampler

FAILED_STEPS = 20  # so many steps' worth of groups without a valid episode is no accident
WAIT_SECONDS = 0.5  # between two looks at the rollout loop's health
GAP_EVERY_STEPS = 5  # between two looks at the learner's gap, which cost a forward pass


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Where training stands, as a checkpoint stores it.

    step: updates made, which is the version of the weights. groups: indices taken from the task
    stream and not yet trained on, to be played (again) first; next_group: the stream goes on here.
    The counts are of the whole run, in trajectories and tokens. resampling: of
    `Resampler.to_json`; None before the first step, and after those that no checkpoint follows.
    """

    step: int = 0
    groups: tuple[int, ...] = ()
    next_group: int = 0
    episodes: int = 0
    policy_tokens: int = 0
    dropped_stale: int = 0
    dropped_failed: int = 0
    max_staleness: int = 0
    resampling: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class StepReport:
    """One finished step, for those who watch. params: the weights that it started from. sums: of
    make_train_step, on the host; {} if there was nothing to learn. extra: figures of the learner,
    of its gap to the engine, and of the resampler.
    """

    cursor: Cursor
    params: Params
    groups: list[Group]
    made: Step
    sums: dict[str, np.ndarray]
    extra: dict[str, float]
    seconds_wait: float
    seconds_learn: float


def improve(
    state: TrainState,
    cursor: Cursor,
    config: RunConfig,
    policy: PolicyShape,
    learner: Learner,
    mesh: Mesh,
    engine: Engine,
    pump: Pump,
    resampler: Resampler,
    save: Callable[[TrainState, Cursor], None],
    report: Callable[[StepReport], None],
) -> tuple[TrainState, Cursor]:
    """Trains until `rl.steps` updates are made.

    Consumes: the oldest fresh groups of the replay buffer, one step's worth at a time.
    Waits for: that many groups being whole.
    Unblocked by: the rollout loop, which adds finished episodes to the buffer.
    """
    rl = config.rl
    gate = StalenessGate(rl.alpha, rl.groups_per_step, version=cursor.step)
    buffer = ReplayBuffer(gate, rl.group_size, rl.max_uses, rl.fill_queue)
    stream = _Stream(cursor)
    stale_before, failed_before = cursor.dropped_stale, cursor.dropped_failed
    compute = config.learn.compute

    def deliver(trajectory: Trajectory) -> None:
        resampler.note(trajectory)
        buffer.add(trajectory)

    def replay(assignments: Sequence[Assignment]) -> list[Trajectory]:
        return pump.play(assignments, config.train_sampling)

    pump.train(Training(gate, stream, resampler.assign, deliver, config.train_sampling))
    while cursor.step < rl.steps:
        start = time.monotonic()
        groups = _take(buffer, pump, gate)
        taken = time.monotonic()
        _assert_fresh(groups, gate)
        imitated = resampler.imitation(groups, config.algo.gamma)
        before, gap = state.params, {}
        state, made, sums, extra = learner.learn(state, groups, imitated, cursor.step)
        # While the device works.
        resampler.learn(groups, cursor.step, replay)
        extra |= resampler.figures(groups, cursor.step)
        # Until here the step has only been sent to the device. It ends before its weights are
        # served, so that versions and numbers do not depend on when the engine picks them up.
        sums = jax.device_get(sums)
        if cursor.step % GAP_EVERY_STEPS == 0:
            # What is trained on is often a version old; what waits was written meanwhile.
            known = [*(t for group in groups for t in group.members), *buffer.held()]
            some = fresh_batches(known, cursor.step, config.learn.shape)
            gap = learner_gap(some, [learner.logp(before, batch) for batch in some])
        with pump.no_admission():
            open_groups = (*gate.outstanding(), *stream.left_open)
            next_group = stream.next_group
            resampler.forget({*open_groups, *buffer.whole()})
            # Of all experts: large, so only where it is written.
            saved = config.checkpoint.is_due(cursor.step + 1, rl.steps)
            resampling = resampler.to_json(open_groups) if saved else None
        dropped = gate.counts()
        cursor = _advance(cursor, groups, gate)
        cursor = dataclasses.replace(
            cursor,
            groups=open_groups,
            next_group=next_group,
            dropped_stale=stale_before + dropped[f"dropped_{Drop.STALE}"] * rl.group_size,
            dropped_failed=failed_before + dropped[f"dropped_{Drop.FAILED}"] * rl.group_size,
            resampling=resampling,
        )
        # Before the gate frees permits: nothing of the next version is in flight yet.
        save(state, cursor)
        stored_as = config.engine.weights
        weights = sampling_weights(state.params, policy, compute, mesh, stored_as)
        engine.publish(weights, cursor.step)
        gate.publish(cursor.step)
        done = time.monotonic()
        seconds = taken - start, done - taken
        report(StepReport(cursor, before, groups, made, sums, gap | extra, *seconds))
    pump.train(None)
    return state, cursor


def _take(buffer: ReplayBuffer, pump: Pump, gate: StalenessGate) -> list[Group]:
    failed_before = _failed(gate)
    while not (groups := buffer.take(timeout=WAIT_SECONDS)):
        pump.check()
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


def _assert_fresh(groups: list[Group], gate: StalenessGate) -> None:
    for group in groups:
        for trajectory in group.valid:
            old = age(gate.version, trajectory.start_version)
            assert 0 <= old <= gate.max_age, (group.index, old, gate.max_age)


class _Stream(Iterator[int]):
    """Indices of training groups: those that a checkpoint left open, then ever new ones."""

    def __init__(self, cursor: Cursor):
        self._open = deque(cursor.groups)
        self._new = itertools.count(cursor.next_group)
        self.next_group = cursor.next_group

    def __next__(self) -> int:
        if self._open:
            return self._open.popleft()
        index = next(self._new)
        self.next_group = index + 1
        return index

    @property
    def left_open(self) -> tuple[int, ...]:
        """Those of the checkpoint that were not asked for yet: with alpha above 1 and a small crew
        not all of them are admitted within one step."""
        return tuple(self._open)


def _advance(cursor: Cursor, groups: list[Group], gate: StalenessGate) -> Cursor:
    members = [t for group in groups for t in group.members]
    ages = [age(gate.version, t.start_version) for group in groups for t in group.valid]
    return dataclasses.replace(
        cursor,
        step=cursor.step + 1,
        episodes=cursor.episodes + len(members),
        policy_tokens=cursor.policy_tokens + sum(t.num_policy_tokens for t in members),
        max_staleness=max(cursor.max_staleness, *ages),
    )


def _checksum(trajectories: list[Trajectory]) -> int:
    """Of all that was read and written, ids in order: equal in two runs that are the same run."""
    crc = 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for ids in (turn.prompt_ids, turn.action_ids):
                crc = zlib.crc32(np.ascontiguousarray(ids, np.int32).tobytes(), crc)
    return crc


def _success(trajectories: list[Trajectory]) -> float:
    return float(np.mean([t.episode.reward > 0 for t in trajectories]))


def _by_family(trajectories: list[Trajectory]) -> dict[str, list[Trajectory]]:
    families = defaultdict(list)
    for trajectory in trajectories:
        families[trajectory.episode.slot.task.family].append(trajectory)
    return families


def figures(report: StepReport) -> dict[str, float | dict[str, int]]:
    """The step's metrics, by the names that metrics.jsonl and the report use."""
    trajectories = [t for group in report.groups for t in group.valid]
    version = report.cursor.step - 1  # at which the step was made
    ages = [age(version, t.start_version) for t in trajectories]
    rewards = [t.episode.reward for t in trajectories]
    sums = {name: float(x) for name, x in report.sums.items() if np.ndim(x) == 0}
    tokens = max(sums.get("tokens", 0.0), 1.0)
    values = {
        "success": _success(trajectories),
        **{f"success/{family}": _success(ts) for family, ts in _by_family(trajectories).items()},
        "reward": float(np.mean(rewards)),
        "staleness_mean": float(np.mean(ages)),
        "staleness_max": max(ages),
        "staleness_counts": {str(a): n for a, n in sorted(Counter(ages).items())},
        "episodes": report.cursor.episodes,
        "policy_tokens": report.cursor.policy_tokens,
        "tokens_crc32": _checksum(trajectories),
        "turns": float(np.mean([t.episode.turns for t in trajectories])),
        "malformed_calls": float(np.mean([t.episode.malformed_calls for t in trajectories])),
        "teaching_trajectories": len(report.made.samples),
        "dropped_stale": report.cursor.dropped_stale,
        "dropped_failed": report.cursor.dropped_failed,
        "seconds_wait": report.seconds_wait,
        "seconds_learn": report.seconds_learn,
    }
    if sums:
        values |= {
            "loss": sums["loss"],
            "grad_norm": sums["grad_norm"],
            "balance": sums["balance"],
            "entropy": sums["entropy"] / tokens,
            "ratio_mean": sums["ratio"] / max(sums["ratios"], 1.0),
            "chunks_masked": sums["masked_chunks"],
            "masked_share": sums["masked_tokens"] / tokens,
            "clipped_share": sums["clipped_tokens"] / tokens,
            "sampler_gap": sums["engine_gap"] / tokens,
            **ratio_figures(report.sums),
        }
        if "kl" in sums:
            values["kl"] = sums["kl"] / tokens
    return values | router_figures(report.sums) | report.extra
