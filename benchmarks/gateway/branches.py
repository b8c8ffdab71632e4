"""Is every token that the policy sampled trained on once, whatever its agents do?"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ale_jax.gateway.token_tree import Call
from ale_jax.records import Episode, EpisodeKey, SideBranch, Status, Task, Trajectory, Turn
from ale_jax.rollout.trajectories import trajectory_of
from benchmarks.gateway.agents import Agents, Told
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import Stage, Written, small_tokenizer

MOVES = 14  # of an episode's agents
KEY = EpisodeKey("train", 0, 0, Task("count", 0, "train"))
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 1, 0, 1.0, 0.0)

# A reply: what comes before it, its ids, the versions that sampled them.
Delivered = tuple[bytes, bytes, tuple[int, ...]]


def measure(plan: Plan) -> dict[str, Any]:
    stage, total = Stage(small_tokenizer()), collections.Counter[str]()
    moves = collections.Counter[str]()
    for number in range(plan.branch_conversations):
        agents = Agents(stage, f"{plan.seed}/{number}")
        agents.play(MOVES)
        moves += agents.moves
        total += account(stage, agents)
    names = ("replies", "tokens", "branches", "forks", "edited", "ambiguous", "lost_calls")
    return {
        "branch_conversations": plan.branch_conversations,
        "branches_lost_tokens": total["lost"],
        "branches_foreign_tokens": total["foreign"],
        "branches_misread_calls": total["misread"],
        **{f"branches_{name}": total[name] for name in names},
        "branches_moves": dict(sorted(moves.items())),
    }


def account(stage: Stage, agents: Agents) -> collections.Counter[str]:
    """Ends an episode. lost: tokens that its agents got, and that no branch trains on, in their
    context. foreign: those that one trains on, and that were not sampled so, or are trained on
    already. misread: calls whose context is not what their agent told."""
    tree, policy = agents.episode.tree, agents.policy
    branches = agents.episode.end("all")
    # An array's identity says which of several equal replies an agent got.
    got = {id(ids) for ids in agents.got}
    wanted = collections.Counter(map(_written, (w for w in policy.written if id(w.ids) in got)))
    decode = stage.tokenizer.decode
    found = collections.Counter(trained(trajectory_of(EPISODE, branches, 0, decode)))
    misread = sum(not _is_read(stage, told, call) for told, call in agents.asked)
    return collections.Counter(
        lost=_tokens(wanted - found),
        foreign=_tokens(found - wanted),
        misread=misread,
        replies=len(got),
        tokens=_tokens(wanted),
        branches=len(branches),
        forks=tree.counts.forks,
        edited=tree.counts.edited,
        ambiguous=tree.counts.ambiguous,
        lost_calls=tree.counts.lost,
    )


def trained(trajectory: Trajectory) -> Iterator[Delivered]:
    """What a trajectory trains on."""
    branches: list[Trajectory | SideBranch] = [trajectory, *trajectory.side_branches]
    for branch in branches:
        for number in range(branch.num_prefix_turns, len(branch.turns)):
            turn = branch.turns[number]
            yield _key(_before(branch.turns, number), turn.action_ids, turn.version)


def _before(turns: Sequence[Turn], number: int) -> np.ndarray:
    parts = [part for turn in turns[:number] for part in (turn.prompt_ids, turn.action_ids)]
    return np.concatenate([*parts, turns[number].prompt_ids])


def _written(each: Written) -> Delivered:
    return _key(each.context, each.ids, np.full(len(each.ids), each.version))


def _key(context: np.ndarray, ids: np.ndarray, version: np.ndarray) -> Delivered:
    as_bytes = (np.asarray(part, np.int32).tobytes() for part in (context, ids))
    return (*as_bytes, tuple(version.tolist()))


def _tokens(replies: collections.Counter[Delivered]) -> int:
    return sum(len(versions) * count for (_, _, versions), count in replies.items())


def _is_read(stage: Stage, told: Told, call: Call) -> bool:
    """Whether the context of a call has all that its agent has told, in order, and no turn more."""
    text, at = "", 0
    turns = 0
    for piece, is_special in stage.tokenizer.pieces(call.context_ids()):
        turns += is_special
        text += "" if is_special else piece
    for content in (message.content.strip() for message in told.messages):
        if (at := text.find(content, at)) < 0:
            return False
        at += len(content)
    # Results that follow each other are one turn, and the policy's own begins behind all.
    roles = [message.role for message in told.messages]
    results = sum(a == b == "tool" for a, b in itertools.pairwise(roles))
    return turns == len(roles) - results + 1
