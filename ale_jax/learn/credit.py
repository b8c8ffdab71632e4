"""Credit of chunks: from groups to arrays of rewards, to their advantages, and back to samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from ale_jax.algo.advantages import Credit, Rewards, credit_chunks
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.credit import EPISODE, EVERY_ACTION, CreditHypers
from ale_jax.data.packing import Sample
from ale_jax.data.replay import Group
from ale_jax.learn.chunks import Chunk, chunks_of, overlong_penalty
from ale_jax.learn.states import anchors, nodes, recent_anchors
from ale_jax.records import Trajectory
from ale_jax.status import STATUS_RULES

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RewardTable:
    """What the trajectories of a step earned.

    There is one row per member of each group, including invalid ones: N does not depend on any
    outcome. trajectories, chunks: one per row. rewards: arrays of NumPy, described in
    `ale_jax.algo.advantages`. Groups are numbered from 0 in the given order, and tags, which are
    task families, in the order of their first appearance. Chunks are as `chunks_of` finds them. The
    outcome of an invalid trajectory is 0, and so are the unused places of reward_NC, anchor_NC,
    node_NC and tokens_NC.

    Two groups of two members, of which the first had two chunks and the others one each, and the
    last one was lost; `tag_G` is [0, 0] if both tasks are of one family:

        group_N   num_chunks_N   reward_NC   outcome_N   valid_N
        0         2              0   1       1           True
        0         1              0   0       0           True
        1         1              1   0       1           True
        1         1              0   0       0           False
    """

    trajectories: tuple[Trajectory, ...]
    chunks: tuple[tuple[Chunk, ...], ...]
    rewards: Rewards

    @property
    def tag_G(self) -> np.ndarray:
        """The tag of each group, whose members all play the same task."""
        _, first = np.unique(self.rewards.group_N, return_index=True)
        return np.asarray(self.rewards.tag_N)[first]


def tabulate_rewards(
    groups: Sequence[Group],
    max_chunks: int,
    anchor_depth: int = 0,
    hp: CreditHypers = EVERY_ACTION,
) -> RewardTable:
    """Tabulates the rewards of all members of the groups, with C = max_chunks and H = anchor_depth.

    Raises:
      ValueError: a trajectory has more chunks.
    """
    rows = [(g, t) for g, group in enumerate(groups) for t in group.members]
    chunks = tuple(chunks_of(t, hp) for _, t in rows)
    longest = max(map(len, chunks), default=0)
    if longest > max_chunks:
        raise ValueError(
            f"a trajectory has {longest} chunks but chunks_per_pack is {max_chunks}: "
            "raise it, or lower the turn limit of the rollouts"
        )
    reward_NC = np.zeros((len(rows), max_chunks), np.float32)
    for n, own in enumerate(chunks):
        reward_NC[n, : len(own)] = [chunk.reward for chunk in own]
    valid = [STATUS_RULES[t.episode.status].reward_valid for _, t in rows]
    outcome = [_earned(t, hp) if ok else 0.0 for (_, t), ok in zip(rows, valid)]
    arrays: dict[str, Any] = {
        "reward_NC": reward_NC,
        "outcome_N": np.array(outcome, np.float32),
        "num_chunks_N": np.array(list(map(len, chunks)), np.int32),
        "group_N": np.array([g for g, _ in rows], np.int32),
        "tag_N": _number(t.episode.key.task.family for _, t in rows),
        "valid_N": np.array(valid, bool),
        "anchor_NC": anchors(rows, chunks, max_chunks),
        "node_NC": nodes(rows, chunks, max_chunks),
        "tokens_NC": _token_counts([t for _, t in rows], chunks, max_chunks),
        "anchor_NCH": recent_anchors(rows, chunks, max_chunks, anchor_depth),
    }
    return RewardTable(tuple(t for _, t in rows), chunks, Rewards(**arrays))


def _earned(trajectory: Trajectory, hp: CreditHypers) -> float:
    """What the sampled chunks earned: the episode's reward without that of its prefix."""
    episode = trajectory.episode
    assert episode.reward is not None, "only a valid trajectory has an outcome"
    of_prefix = math.fsum(episode.step_rewards[: episode.key.num_prefix_turns])
    return episode.reward - of_prefix + overlong_penalty(trajectory, hp)


def _number(names: Iterable[str]) -> np.ndarray:
    """Numbers the names from 0, in the order of their first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)


def _token_counts(
    trajectories: Sequence[Trajectory], chunks: Sequence[Sequence[Chunk]], max_chunks: int
) -> np.ndarray:
    """Counts the tokens of each chunk, int32 [N, C]."""
    tokens_NC = np.zeros((len(trajectories), max_chunks), np.int32)
    for n, trajectory in enumerate(trajectories):
        turns = [trajectory.branches[chunk.branch].turns[chunk.turn] for chunk in chunks[n]]
        tokens_NC[n, : len(turns)] = [len(turn.action_ids) for turn in turns]
    return tokens_NC


def credit_table(table: RewardTable, num_groups: int, algo: AlgoConfig) -> Credit:
    """Returns the credit of each chunk of the table, in arrays of NumPy."""
    rewards = on_cpu(table.rewards)
    return jax.device_get(_credit_chunks(rewards, num_groups, algo.gamma, algo.advantage))


def on_cpu(arrays: T) -> T:
    """Places arrays on this host's CPU. There, sums by segment add in the order of the units; a GPU
    adds in no fixed order, and a resumed run must be bit-identical to an unbroken one."""
    return jax.device_put(arrays, jax.local_devices(backend="cpu")[0])


_credit_chunks = jax.jit(credit_chunks, static_argnums=(1, 2, 3))


def credited_samples(table: RewardTable, credit: Credit, algo: AlgoConfig) -> list[Sample]:
    """Returns a sample with its credit for each conversation of each valid trajectory, in row
    order, ready for packing; none for those in which no reply earns credit."""
    rewards, samples = table.rewards, []
    for n in np.flatnonzero(rewards.valid_N):
        trajectory, total = table.trajectories[n], int(np.sum(rewards.tokens_NC[n]))
        for b, branch in enumerate(trajectory.branches):
            own_C = np.array([c for c, ch in enumerate(table.chunks[n]) if ch.branch == b], int)
            sampled = range(branch.num_prefix_turns, len(branch.turns))
            uncredited = frozenset(sampled) - {table.chunks[n][c].turn for c in own_C}
            if uncredited and not len(own_C):
                continue
            tokens = int(np.sum(rewards.tokens_NC[n, own_C]))
            sample = Sample.of(
                trajectory,
                np.asarray(credit.advantage_NC[n, own_C]),
                branch,
                group=int(rewards.group_N[n]),
                reward_C=_own_rewards(table, credit, int(n), own_C, algo),
                uncredited=uncredited,
                weight=tokens / total if tokens and _weighs_once(algo) else 1.0,
            )
            samples.append(sample)
    return samples


def _weighs_once(algo: AlgoConfig) -> bool:
    """Whether the conversations of an episode share the weight of one trajectory's mean."""
    return algo.loss.aggregation == "trajectory_means" and algo.credit.trajectory == EPISODE


def _own_rewards(
    table: RewardTable, credit: Credit, n: int, own_C: np.ndarray, algo: AlgoConfig
) -> np.ndarray:
    """The rewards of a conversation's chunks. What others earned after its last one is a part of
    that one's, discounted, since estimators on tokens see each conversation by itself."""
    reward_C = np.array(credit.reward_NC[n, own_C])
    end = int(table.rewards.num_chunks_N[n])
    if len(own_C) and (last := int(own_C[-1])) + 1 < end:
        by_chunk = algo.advantage.steps_are_chunks
        tokens_C = np.asarray(table.rewards.tokens_NC[n, last + 1 : end])
        steps_C = np.cumsum(np.ones_like(tokens_C) if by_chunk else tokens_C)
        later_C = np.asarray(credit.reward_NC[n, last + 1 : end])
        reward_C[-1] += np.sum(algo.gamma**steps_C * later_C)
    return reward_C
