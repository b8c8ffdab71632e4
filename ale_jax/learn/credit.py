"""Credit of chunks: from groups to arrays of rewards, to their advantages, and back to samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ale_jax.algo.advantages import Credit, Rewards, credit_chunks
from ale_jax.config.algo import AlgoConfig
from ale_jax.data.packing import Sample
from ale_jax.data.replay import Group
from ale_jax.records import SideBranch, Trajectory
from ale_jax.status import STATUS_RULES


@dataclasses.dataclass(frozen=True)
class RewardTable:
    """What the trajectories of a step earned.

    There is one row per member of each group, including invalid ones: N does not depend on any
    outcome. trajectories: one per row. rewards: arrays of NumPy, described in
    `ale_jax.algo.advantages`. Groups are numbered from 0 in the given order, and tags, which are
    task families, in the order of their first appearance. Chunks are those that were sampled, not
    prefix turns. The outcome of an invalid trajectory is 0, and so are the unused places of
    reward_NC, anchor_NC and tokens_NC.

    Two groups of two members, of which the first had two chunks and the others one each, and the
    last one was lost; `tag_G` is [0, 0] if both tasks are of one family:

        group_N   num_chunks_N   reward_NC   outcome_N   valid_N
        0         2              0   1       1           True
        0         1              0   0       0           True
        1         1              1   0       1           True
        1         1              0   0       0           False
    """

    trajectories: tuple[Trajectory, ...]
    rewards: Rewards

    @property
    def tag_G(self) -> np.ndarray:
        """The tag of each group, whose members all play the same task."""
        _, first = np.unique(self.rewards.group_N, return_index=True)
        return np.asarray(self.rewards.tag_N)[first]


def tabulate_rewards(
    groups: Sequence[Group], max_chunks: int, anchor_depth: int = 0
) -> RewardTable:
    """Tabulates the rewards of all members of the groups, with C = max_chunks and H = anchor_depth.

    Raises:
      ValueError: a trajectory has more chunks.
    """
    rows = [(g, t) for g, group in enumerate(groups) for t in group.members]
    sampled = [t.turns[t.num_prefix_turns :] for _, t in rows]
    longest = max(map(len, sampled), default=0)
    if longest > max_chunks:
        raise ValueError(
            f"a trajectory has {longest} chunks but chunks_per_pack is {max_chunks}: "
            "raise it, or lower the turn limit of the rollouts"
        )
    reward_NC = np.zeros((len(rows), max_chunks), np.float32)
    for n, turns in enumerate(sampled):
        reward_NC[n, : len(turns)] = [turn.reward for turn in turns]
    valid = [STATUS_RULES[t.episode.status].reward_valid for _, t in rows]
    outcome = [_earned(t) if ok else 0.0 for (_, t), ok in zip(rows, valid)]
    arrays: dict[str, Any] = {
        "reward_NC": reward_NC,
        "outcome_N": np.array(outcome, np.float32),
        "num_chunks_N": np.array([len(turns) for turns in sampled], np.int32),
        "group_N": np.array([g for g, _ in rows], np.int32),
        "tag_N": _number(t.episode.key.task.family for _, t in rows),
        "valid_N": np.array(valid, bool),
        "anchor_NC": _anchors(rows, max_chunks),
        "tokens_NC": _token_counts([t for _, t in rows], max_chunks),
        "anchor_NCH": _recent_anchors(rows, max_chunks, anchor_depth),
    }
    return RewardTable(tuple(t for _, t in rows), Rewards(**arrays))


def _earned(trajectory: Trajectory) -> float:
    """What the sampled chunks earned: the episode's reward without that of its prefix."""
    episode = trajectory.episode
    assert episode.reward is not None, "only a valid trajectory has an outcome"
    return episode.reward - math.fsum(episode.step_rewards[: episode.key.num_prefix_turns])


def _number(names: Iterable[str]) -> np.ndarray:
    """Numbers the names from 0, in the order of their first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)


def _anchors(rows: Sequence[tuple[int, Trajectory]], max_chunks: int) -> np.ndarray:
    """Finds, for each chunk, the first row that was in the same state before it.

    The state is the group and everything that the world has shown so far, in order. What the policy
    wrote is not part of it, because two wordings of one command lead to the same state. The last
    observation alone would not identify the state: in a shell most commands print nothing, whatever
    the state.
    """
    anchor_NC = np.zeros((len(rows), max_chunks), np.int32)
    states: dict[tuple[int, int, str], int] = {}
    first_row: dict[int, int] = {}
    for n, (group, trajectory) in enumerate(rows):
        state = -1
        for k, turn in enumerate(trajectory.turns):
            state = states.setdefault((group, state, turn.prompt_text), len(states))
            if k >= trajectory.num_prefix_turns:
                anchor_NC[n, k - trajectory.num_prefix_turns] = first_row.setdefault(state, n)
    return anchor_NC


def _token_counts(trajectories: Sequence[Trajectory], max_chunks: int) -> np.ndarray:
    """Counts policy tokens by the chunk whose credit they get (`_side_sample`), int32 [N, C]."""
    tokens_NC = np.zeros((len(trajectories), max_chunks), np.int32)
    for n, trajectory in enumerate(trajectories):
        end = len(trajectory.turns) - trajectory.num_prefix_turns
        for branch in trajectory.branches:
            counts = [len(turn.action_ids) for turn in branch.turns[branch.num_prefix_turns :]]
            tokens_NC[n, end - len(counts) : end] += np.array(counts, np.int32)
    return tokens_NC


def _recent_anchors(
    rows: Sequence[tuple[int, Trajectory]], max_chunks: int, depth: int
) -> np.ndarray:
    """Finds, for each chunk and k = 1..depth, the first chunk of its group, by its index in N x C,
    before which the last k observations were the same. A chunk before which there were fewer is in
    no state of k observations, and has its own index."""
    own_NC = np.arange(len(rows) * max_chunks, dtype=np.int32).reshape(-1, max_chunks)
    anchor_NCH = np.repeat(own_NC[:, :, None], depth, axis=2)
    first: dict[tuple[object, ...], int] = {}
    for n, (group, trajectory) in enumerate(rows):
        seen = [turn.prompt_text for turn in trajectory.turns]
        for c, end in enumerate(range(trajectory.num_prefix_turns + 1, len(seen) + 1)):
            for k in range(1, min(depth, end) + 1):
                state = (group, *seen[end - k : end])
                anchor_NCH[n, c, k - 1] = first.setdefault(state, own_NC[n, c])
    return anchor_NCH


def credit_table(table: RewardTable, num_groups: int, algo: AlgoConfig) -> Credit:
    """Returns the credit of each chunk of the table, in arrays of NumPy."""
    return jax.device_get(_credit_chunks(table.rewards, num_groups, algo.gamma, algo.advantage))


_credit_chunks = jax.jit(credit_chunks, static_argnums=(1, 2, 3))


def credited_samples(table: RewardTable, credit: Credit) -> list[Sample]:
    """Returns a sample with its credit for each conversation of each valid trajectory, in row
    order, ready for packing."""
    rewards, samples = table.rewards, []
    for n, trajectory in enumerate(table.trajectories):
        if rewards.valid_N[n]:
            chunks = slice(rewards.num_chunks_N[n])
            longest = Sample.of(
                trajectory,
                np.asarray(credit.advantage_NC[n, chunks]),
                group=int(rewards.group_N[n]),
                reward_C=np.asarray(credit.reward_NC[n, chunks]),
            )
            side = (_side_sample(branch, longest) for branch in trajectory.side_branches)
            samples += [longest, *side]
    return samples


def _side_sample(branch: SideBranch, longest: Sample) -> Sample:
    """Gives each chunk of a side branch the credit of the longest conversation's chunk which is as
    far from the end, because both lead to the same outcome. This is exact for the estimators that
    look at nothing but the outcome and this distance."""
    sampled = branch.turns[branch.num_prefix_turns :]
    reward_C = np.array([turn.reward for turn in sampled], np.float32)
    assert longest.reward_C is not None, "the table has the rewards of its chunks"
    reward_C[-1] = longest.reward_C[-1]
    return dataclasses.replace(
        longest,
        turns=branch.turns,
        advantage_C=longest.advantage_C[-len(sampled) :],
        num_prefix_turns=branch.num_prefix_turns,
        reward_C=reward_C,
        expert_TLK=branch.expert_TLK,
    )
