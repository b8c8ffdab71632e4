"""Metrics of a step's episodes, and of the groups that were dropped since the step before."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.staleness import Drop, age
from ale_jax.records import Trajectory
from ale_jax.status import Status


def group_metrics(groups: Sequence[Group], dropped: Sequence[DroppedGroup]) -> dict[str, float]:
    """Returns figures of groups.

    groups_solved, groups_failed: shares of the step's groups in which every episode, or none,
    solved its task. success_sampled: success of all episodes that were judged since the step
    before, those of groups included that dynamic sampling left out. trained_groups/FAMILY,
    stale_groups/FAMILY: how many groups of a family the step was made of, and how many were dropped
    since the step before because they were too old. Where the second is large beside the first,
    slow tasks are trained on less than they were drawn.
    """
    solved = [[t.episode.is_solved for t in group.valid] for group in groups]
    equal = [d for d in dropped if d.reason == Drop.EQUAL]
    judged = [*(t for group in groups for t in group.valid), *(t for d in equal for t in d.valid)]
    trained = Counter(_families(group.members for group in groups))
    stale = Counter(d.family for d in dropped if d.reason == Drop.STALE)
    return {
        "groups_solved": float(np.mean([all(each) for each in solved])),
        "groups_failed": float(np.mean([not any(each) for each in solved])),
        "success_sampled": _success(judged),
        **{f"trained_groups/{family}": n for family, n in sorted(trained.items())},
        **{f"stale_groups/{family}": n for family, n in sorted(stale.items())},
    }


def _families(groups: Iterable[Sequence[Trajectory]]) -> Iterator[str]:
    return (members[0].episode.key.task.family for members in groups)


def token_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns figures of all sampled tokens, also of those that have no gradient.

    response_tokens, response_tokens_max: that the policy wrote in an episode, mean and maximum.
    reply_tokens: mean length of a reply. entropy_sampled: minus the mean log-probability with which
    tokens were sampled, an estimate of the sampling policy's entropy, in nats per token, that needs
    no forward pass. (`entropy` is exact, of the policy that learns, and over trained tokens alone.)
    """
    replies = [turn for trajectory in trajectories for turn in trajectory.sampled_turns]
    if not replies:
        return {}
    tokens = [trajectory.num_policy_tokens for trajectory in trajectories]
    logp_U = np.concatenate([turn.logp_mu for turn in replies])
    return {
        "response_tokens": float(np.mean(tokens)),
        "response_tokens_max": max(tokens),
        "reply_tokens": len(logp_U) / len(replies),
        "entropy_sampled": -float(logp_U.mean(dtype=np.float64)) if len(logp_U) else 0.0,
    }


def rollout_metrics(
    trajectories: list[Trajectory], version: int
) -> dict[str, float | dict[str, int]]:
    """Returns figures of the step's episodes. version: of the weights that the step started with;
    ages are relative to it."""
    ages = [age(version, t.start_version) for t in trajectories]
    return {
        "success": _success(trajectories),
        "reward": _reward(trajectories),
        "reward_std": float(np.std([t.episode.reward or 0.0 for t in trajectories])),
        "staleness_mean": float(np.mean(ages)),
        "staleness_max": max(ages),
        "staleness_counts": {str(a): n for a, n in sorted(Counter(ages).items())},
        "tokens_crc32": _checksum(trajectories),
        "turns": float(np.mean([t.episode.turns for t in trajectories])),
        "no_verdict": float(np.mean([t.episode.status == Status.NO_VERDICT for t in trajectories])),
        "malformed_calls": float(np.mean([t.episode.malformed_calls for t in trajectories])),
    }


def episode_times(trajectories: list[Trajectory]) -> dict[str, float]:
    """Returns seconds, summed over the step's episodes. These overlap, so sums exceed wall time."""
    episodes = [t.episode for t in trajectories]
    verifier = sum(e.verifier_seconds for e in episodes)
    return {
        "time/generation_s": sum(e.policy_seconds for e in episodes),
        "time/environment_s": sum(e.env_seconds for e in episodes) - verifier,
        "time/verifier_s": verifier,
    }


def _checksum(trajectories: list[Trajectory]) -> int:
    """CRC-32 of all token ids of prompts and replies, in order. Identical runs have equal ones."""
    crc = 0
    branches = [each for t in trajectories for each in t.branches]
    for turn in (turn for branch in branches for turn in branch.turns):
        for ids in (turn.prompt_ids, turn.action_ids):
            crc = zlib.crc32(np.ascontiguousarray(ids, np.int32).tobytes(), crc)
    return crc


def _success(trajectories: list[Trajectory]) -> float:
    return float(np.mean([t.episode.is_solved for t in trajectories]))


def _reward(trajectories: list[Trajectory]) -> float:
    return float(np.mean([t.episode.reward for t in trajectories]))
