"""Chooses trajectories of a step to record, with their chunks, tokens and credit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ale_jax.algo.ratio import keep_mask
from ale_jax.config.algo import MismatchHypers
from ale_jax.learn.credit import RewardTable
from ale_jax.learn.step import TokenUpdate
from ale_jax.monitor.trajectories import ChunkTokens, TrajectorySample, TurnSample
from ale_jax.records import Batch, Trajectory, Turn
from ale_jax.system.step_metrics import StepReport

EVERY_STEPS = 5  # steps between two groups that are recorded
MOST_MEMBERS = 4  # members of a group that are recorded
DECIMALS = 6  # of recorded log-probabilities
# Of recorded advantages and credits, which may be as small as one over a trajectory's tokens.
SIGNIFICANT_DIGITS = 7


class Learned(NamedTuple):
    """What the loss used and what the update was, per policy token.

    kept: False where the mismatch filter removed the token. logp, credit: as in `TokenUpdate`; None
    if there was no update.
    """

    advantage: np.ndarray
    logp_old: np.ndarray
    kept: np.ndarray
    logp: np.ndarray | None
    credit: np.ndarray | None

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(values).all() for values in self if values is not None)

    def part(self, tokens: slice) -> Learned:
        return Learned(
            self.advantage[tokens],
            self.logp_old[tokens],
            self.kept[tokens],
            None if self.logp is None else self.logp[tokens],
            None if self.credit is None else self.credit[tokens],
        )


def trajectory_samples(report: StepReport, hp: MismatchHypers) -> Iterator[TrajectorySample]:
    """Every EVERY_STEPS steps, yields members of a group that has both successes and failures.
    A member with a value that is not finite is left out."""
    if report.cursor.step % EVERY_STEPS:
        return
    chosen = _contrast(report)
    updates = report.made.read_updates() if chosen else ()
    for written in chosen:
        learned = _as_learned(report.made.batches, updates, written, hp)
        if learned.is_finite:
            yield _sample(report.cursor.step, written, learned)


class _Written(NamedTuple):
    """A trajectory, and what of its longest conversation is trained on. group: its number. own: the
    numbers of the turns that are chunks."""

    group: int
    trajectory: Trajectory
    own: tuple[int, ...]

    @property
    def chunks(self) -> list[Turn]:
        return [self.trajectory.turns[number] for number in self.own]


def _with_chunks(table: RewardTable, group: int) -> list[_Written]:
    """The valid members of a group that have chunks in their longest conversations."""
    rewards, found = table.rewards, []
    for n in np.flatnonzero(rewards.valid_N & (rewards.group_N == group)):
        own = tuple(chunk.turn for chunk in table.chunks[n] if chunk.branch == 0)
        if own:
            found.append(_Written(group, table.trajectories[n], own))
    return found


def _contrast(report: StepReport) -> list[_Written]:
    """Alternating successes and failures of the first group that has both.

    Groups are ordered by family, so the search starts at another group each time.
    """
    first = report.cursor.step // EVERY_STEPS % len(report.groups)
    numbers = range(len(report.groups))
    for number in (*numbers[first:], *numbers[:first]):
        written = _with_chunks(report.made.table, number)
        won = [each for each in written if each.trajectory.episode.is_solved]
        lost = [each for each in written if not each.trajectory.episode.is_solved]
        if won and lost:
            in_turn = itertools.chain(*itertools.zip_longest(won, lost))
            return [each for each in in_turn if each is not None][:MOST_MEMBERS]
    return []


def _as_learned(
    batches: Sequence[Batch],
    updates: Sequence[TokenUpdate],
    written: _Written,
    hp: MismatchHypers,
) -> Learned:
    """The values of the tokens of one trajectory's chunks, in order. A trajectory whose advantages
    are all 0 was not packed: pi_old is as recorded, and there was neither a filter nor an update.
    """
    group, member = written.group, written.trajectory.episode.key.member
    for batch, update in itertools.zip_longest(batches, updates):
        own_BT = (batch.group_BT == group) & (batch.member_BT == member) & (batch.chunk_BT >= 0)
        own_BT = _longest_of(own_BT, batch, written)
        if own_BT.any():
            updated = (None, None) if update is None else (x_BT[own_BT] for x_BT in update)
            return Learned(
                batch.advantage_BT[own_BT],
                batch.logp_old_BT[own_BT],
                _kept(batch, hp)[own_BT],
                *updated,
            )
    old = np.concatenate([turn.logp_old for turn in written.chunks])
    return Learned(np.zeros_like(old), old, np.ones(old.shape, bool), None, None)


def _longest_of(own_BT: np.ndarray, batch: Batch, written: _Written) -> np.ndarray:
    """Of the episode's policy tokens, those of its longest conversation: side branches are packed
    as segments of their own. A segment is never split between rows."""
    if not written.trajectory.side_branches:
        return own_BT
    wanted = np.concatenate([turn.action_ids for turn in written.chunks])
    for row, segment in {(b, batch.segment_BT[b, t]) for b, t in np.argwhere(own_BT)}:
        in_row = np.arange(len(own_BT))[:, None] == row
        segment_BT = own_BT & in_row & (batch.segment_BT == segment)
        if np.array_equal(batch.tokens_BT[segment_BT], wanted):
            return segment_BT
    return np.zeros_like(own_BT)


def _kept(batch: Batch, hp: MismatchHypers) -> np.ndarray:
    gap_BT = batch.logp_old_BT - batch.logp_mu_BT
    num_chunks = 1 << int(batch.chunk_BT.max()).bit_length()  # of few sizes few are compiled
    chunk_BT, segment_BT = jnp.asarray(batch.chunk_BT), jnp.asarray(batch.segment_BT)
    return np.asarray(keep_mask(jnp.asarray(gap_BT), chunk_BT, segment_BT, num_chunks, hp))


def _sample(step: int, written: _Written, learned: Learned) -> TrajectorySample:
    trajectory, turns, at = written.trajectory, [], 0
    for number, turn in enumerate(trajectory.turns):
        if number not in written.own:
            turns.append(_untrained(turn))
            continue
        own = slice(at, at + len(turn.action_ids))
        turns.append(_turn(turn, learned.part(own)))
        at = own.stop
    episode = trajectory.episode
    assert episode.reward is not None, "only trajectories with a valid reward are sampled"
    return TrajectorySample(
        step=step,
        family=episode.key.task.family,
        item=episode.key.task.item,
        status=episode.status,
        reward=episode.reward,
        solved=episode.is_solved,
        start_version=trajectory.start_version,
        trained_version=step - 1,
        turns=tuple(turns),
        num_prefix_turns=trajectory.num_prefix_turns,
    )


def _turn(turn: Turn, learned: Learned) -> TurnSample:
    figures: dict[str, float | None] = dict.fromkeys(("credit", "ratio", "logp_mean"))
    if learned.credit is not None and learned.logp is not None:
        figures = {
            "credit": float(np.mean(learned.credit)),
            "ratio": float(np.exp(np.mean(learned.logp - learned.logp_old))),
            "logp_mean": float(np.mean(learned.logp)),
        }
    return TurnSample(
        prompt=turn.prompt_text,
        action=turn.action_text,
        advantage=float(np.mean(learned.advantage)),
        kept=bool(learned.kept.any()),
        tokens=len(turn.action_ids),
        reward=turn.reward,
        **figures,
        each=_tokens(turn, learned),
    )


def _untrained(turn: Turn) -> TurnSample:
    """A turn of an expert's prefix, or a reply without credit, which are not part of the loss."""
    zeros = np.zeros(len(turn.action_ids), np.float32)
    return _turn(turn, Learned(zeros, turn.logp_old, zeros.astype(bool), None, None))


def _tokens(turn: Turn, learned: Learned) -> ChunkTokens:
    return ChunkTokens(
        prompt_ids=tuple(turn.prompt_ids.tolist()),
        action_ids=tuple(turn.action_ids.tolist()),
        logp_mu=_rounded(turn.logp_mu),
        logp_old=_rounded(learned.logp_old),
        version=tuple(turn.version.tolist()),
        advantage=_significant(learned.advantage),
        logp=None if learned.logp is None else _rounded(learned.logp),
        credit=None if learned.credit is None else _significant(learned.credit),
    )


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), DECIMALS) for value in values)


def _significant(values: np.ndarray) -> tuple[float, ...]:
    # Adding 0.0 turns -0.0, the gradient of a masked token, into 0.0.
    return tuple(float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0 for value in values)
