"""Chooses trajectories of a step to record, with their chunks, tokens and credit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ale_jax.algo.algorithm import AlgoConfig, MismatchHypers
from ale_jax.algo.ratio import keep_mask
from ale_jax.data.packing import Sample
from ale_jax.model.params import Params
from ale_jax.monitor.trajectories import ChunkTokens, TrajectorySample, TurnSample
from ale_jax.records import Batch, Trajectory, Turn
from ale_jax.system.step_metrics import StepReport

EVERY_STEPS = 5  # steps between two groups that are recorded
MOST_MEMBERS = 4  # members of a group that are recorded
DIGITS = 6  # decimal places of recorded numbers


class Learned(NamedTuple):
    """What the loss used, per policy token.

    credit: the advantage times its weight in the loss. kept: False where the mismatch filter
    removed the token.
    """

    advantage: np.ndarray
    credit: np.ndarray
    logp_old: np.ndarray
    kept: np.ndarray

    def part(self, tokens: slice) -> Learned:
        return Learned(*(values[tokens] for values in self))


Score = Callable[[Params, Sequence[Sample]], list[np.ndarray]]


def trajectory_samples(
    report: StepReport, score: Score, algo: AlgoConfig
) -> Iterator[TrajectorySample]:
    """Every EVERY_STEPS steps, yields members of a group that has both successes and failures.
    A member with a value that is not finite is left out.

    score: see `make_scorer`.
    """
    if report.cursor.step % EVERY_STEPS:
        return
    members = _contrast(report)
    samples = [Sample.of(t, np.zeros(_chunks(t), np.float32)) for _, t in members]
    scores = score(report.params, samples)
    for (group, trajectory), logp in zip(members, scores, strict=True):
        learned = _as_learned(report.made.batches, group, trajectory, algo)
        if np.isfinite([*logp, *learned.advantage, *learned.logp_old]).all():
            yield _sample(report.cursor.step, trajectory, learned, logp)


def _chunks(trajectory: Trajectory) -> int:
    return len(trajectory.turns) - trajectory.num_prefix_turns


def _contrast(report: StepReport) -> list[tuple[int, Trajectory]]:
    """Alternating successes and failures of the first group that has both, with its number.

    Groups are ordered by family, so the search starts at another group each time.
    """
    first = report.cursor.step // EVERY_STEPS % len(report.groups)
    numbered = list(enumerate(report.groups))
    for number, group in numbered[first:] + numbered[:first]:
        written = [t for t in group.valid if _chunks(t)]
        won = [t for t in written if t.episode.reward > 0]
        lost = [t for t in written if t.episode.reward <= 0]
        if won and lost:
            in_turn = itertools.chain(*itertools.zip_longest(won, lost))
            chosen = [(number, t) for t in in_turn if t is not None]
            return chosen[:MOST_MEMBERS]
    return []


def _as_learned(
    batches: Sequence[Batch], group: int, trajectory: Trajectory, algo: AlgoConfig
) -> Learned:
    """The values of one trajectory's policy tokens, in order. A trajectory without credit was not
    packed: its advantages are 0, pi_old is as recorded, and no filter was applied to it."""
    member = trajectory.episode.key.member
    for batch in batches:
        own_BT = (batch.group_BT == group) & (batch.member_BT == member) & (batch.chunk_BT >= 0)
        if own_BT.any():  # a trajectory is never split between rows
            advantage, kept_BT = batch.advantage_BT[own_BT], _kept(batch, algo.mismatch)
            credit = advantage * np.where(advantage < 0.0, algo.loss.negative_weight, 1.0)
            return Learned(advantage, credit, batch.logp_old_BT[own_BT], kept_BT[own_BT])
    old = np.concatenate(
        [turn.logp_old for turn in trajectory.turns[trajectory.num_prefix_turns :]]
    )
    none = np.zeros_like(old)
    return Learned(none, none, old, np.ones(old.shape, bool))


def _kept(batch: Batch, hp: MismatchHypers) -> np.ndarray:
    gap_BT = batch.logp_old_BT - batch.logp_mu_BT
    num_chunks = gap_BT.shape[1]  # a row has no more chunks than tokens
    return np.asarray(keep_mask(gap_BT, batch.chunk_BT, batch.segment_BT, num_chunks, hp))


def _sample(
    step: int, trajectory: Trajectory, learned: Learned, logp: np.ndarray
) -> TrajectorySample:
    """logp: of the trajectory's policy tokens, under the weights that the step started from."""
    turns = [_given(turn) for turn in trajectory.turns[: trajectory.num_prefix_turns]]
    at = 0
    for turn in trajectory.turns[trajectory.num_prefix_turns :]:
        own = slice(at, at + len(turn.action_ids))
        turns.append(_turn(turn, learned.part(own), logp[own]))
        at = own.stop
    episode = trajectory.episode
    return TrajectorySample(
        step=step,
        family=episode.key.task.family,
        seed=episode.key.task.seed,
        status=episode.status,
        reward=episode.reward,
        start_version=trajectory.start_version,
        trained_version=step - 1,
        turns=tuple(turns),
        num_prefix_turns=trajectory.num_prefix_turns,
    )


def _turn(turn: Turn, learned: Learned, logp: np.ndarray) -> TurnSample:
    return TurnSample(
        prompt=turn.prompt_text,
        action=turn.action_text,
        advantage=float(np.mean(learned.credit)),
        ratio=float(np.exp(np.mean(logp - learned.logp_old))),
        kept=bool(learned.kept.any()),
        tokens=len(turn.action_ids),
        logp_mean=float(np.mean(logp)),
        each=_tokens(turn, learned.advantage, learned.logp_old, logp),
    )


def _given(turn: Turn) -> TurnSample:
    """A turn of an expert's prefix. It is not part of the loss, so it has no credit."""
    none = np.zeros(len(turn.action_ids), np.float32)
    return TurnSample(
        prompt=turn.prompt_text,
        action=turn.action_text,
        advantage=0.0,
        ratio=1.0,
        kept=False,
        tokens=len(turn.action_ids),
        logp_mean=0.0,
        each=_tokens(turn, none, none, none),
    )


def _tokens(turn: Turn, advantage: np.ndarray, old: np.ndarray, logp: np.ndarray) -> ChunkTokens:
    return ChunkTokens(
        prompt_ids=tuple(turn.prompt_ids.tolist()),
        action_ids=tuple(turn.action_ids.tolist()),
        logp_mu=_rounded(turn.logp_mu),
        logp_old=_rounded(old),
        logp=_rounded(logp),
        version=tuple(turn.version.tolist()),
        advantage=_rounded(advantage),
    )


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), DIGITS) for value in values)
