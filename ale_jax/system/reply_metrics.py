"""Metrics of how episodes ended, and of what became of the policy's replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ale_jax.records import ReplyKind, SideBranch, Trajectory
from ale_jax.status import STATUS_RULES

BRANCHING = "branching"  # the metric by which an agent that rewrites its history is known


def truncation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the share of episodes that a limit ended, `truncated`, and that of each limit which
    did, `truncated/STATUS`."""
    statuses = Counter(trajectory.episode.status for trajectory in trajectories)
    limits = {status: n for status, n in statuses.items() if STATUS_RULES[status].truncated}
    shares = {f"truncated/{status}": n / len(trajectories) for status, n in sorted(limits.items())}
    return {"truncated": sum(limits.values()) / max(len(trajectories), 1)} | shares


def reply_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns figures of the conversations of episodes. trajectories: also those without a valid
    reward, such as one that lost a reply.

    Means over episodes: `replies`, `branches` (conversations), `forks`, `edits`, `lost_replies`,
    `left_out_tokens`, as in `CallCounts`.
    Shares of replies: `replies_cut`, `replies_replaced`, `replies_side`. `branching`: of the
    replies that were carried out after the first of their episode, the share that do not go on
    from the one before in their conversation. Near 1, agents rewrite their history.
    """
    kinds: Counter[ReplyKind] = Counter()
    begun = continued = 0
    for trajectory in trajectories:
        kinds.update(turn.kind for turn in trajectory.sampled_turns)
        actions = sum(turn.kind is ReplyKind.ACTION for turn in trajectory.sampled_turns)
        begun += max(sum(map(_acts, trajectory.branches)) - 1, 0)
        continued += max(actions - 1, 0)
    replies, episodes = kinds.total(), max(len(trajectories), 1)

    def per_episode(name: str) -> float:
        return sum(getattr(t.calls, name) for t in trajectories) / episodes

    return {
        "replies": replies / episodes,
        "branches": sum(len(t.branches) for t in trajectories if t.turns) / episodes,
        "forks": per_episode("forks"),
        "edits": per_episode("edited"),
        "lost_replies": per_episode("lost"),
        "left_out_tokens": per_episode("left_out"),
        **{
            f"replies_{kind}": kinds[kind] / max(replies, 1)
            for kind in ReplyKind
            if kind is not ReplyKind.ACTION
        },
        BRANCHING: begun / max(continued, 1),
    }


def _acts(branch: Trajectory | SideBranch) -> bool:
    """Whether a conversation has a reply of its own that was carried out."""
    own = branch.turns[branch.num_prefix_turns :]
    return any(turn.kind is ReplyKind.ACTION for turn in own)
