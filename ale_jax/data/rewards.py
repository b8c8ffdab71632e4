"""From groups to reward arrays, which `ale_jax.algo.returns` credits, and back to samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ale_jax.data.packing import Sample
from ale_jax.data.replay import Group
from ale_jax.records import STATUS_RULES, Trajectory


@dataclasses.dataclass(frozen=True)
class RewardTable:
    """One row per member of each group, the invalid ones too: N depends on no episode's fate.

    trajectories: the N rows' owners. reward_NC float32: each chunk's own reward, the outcome on the
    last; 0 where unused. outcome_N float32: the episode's reward, 0 if invalid. num_chunks_N and
    group_N int32, groups numbered 0.. in the order given. valid_N bool.
    """

    trajectories: tuple[Trajectory, ...]
    reward_NC: np.ndarray
    outcome_N: np.ndarray
    num_chunks_N: np.ndarray
    group_N: np.ndarray
    valid_N: np.ndarray


def tabulate_rewards(groups: Sequence[Group], max_chunks: int) -> RewardTable:
    """Shapes: N = all members, C = max_chunks. ValueError if a trajectory has more chunks."""
    rows = [(g, t) for g, group in enumerate(groups) for t in group.members]
    longest = max((len(t.turns) for _, t in rows), default=0)
    if longest > max_chunks:
        raise ValueError(
            f"a trajectory has {longest} chunks but chunks_per_row is {max_chunks}: "
            "raise it, or lower the turn limit of the rollouts"
        )
    reward_NC = np.zeros((len(rows), max_chunks), np.float32)
    for n, (_, t) in enumerate(rows):
        reward_NC[n, : len(t.turns)] = [turn.reward for turn in t.turns]
    valid = [STATUS_RULES[t.episode.status].reward_valid for _, t in rows]
    outcome = [t.episode.reward if ok else 0.0 for (_, t), ok in zip(rows, valid)]
    return RewardTable(
        trajectories=tuple(t for _, t in rows),
        reward_NC=reward_NC,
        outcome_N=np.array(outcome, np.float32),
        num_chunks_N=np.array([len(t.turns) for _, t in rows], np.int32),
        group_N=np.array([g for g, _ in rows], np.int32),
        valid_N=np.array(valid, bool),
    )


def credited_samples(
    table: RewardTable, advantage_NC: np.ndarray, positive_N: np.ndarray
) -> list[Sample]:
    """Each valid trajectory with its credit, ready to be packed; row order kept."""
    return [
        Sample.of(t, np.asarray(advantage_NC[n, : len(t.turns)]), bool(positive_N[n]))
        for n, t in enumerate(table.trajectories)
        if table.valid_N[n]
    ]
