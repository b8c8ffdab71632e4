"""Is every token that the policy sampled trained on once, whatever its agents do?"""

from __future__ import annotations

import collections
import itertools
from typing import Any

from ale_jax.gateway.custody.calls import Call
from benchmarks.gateway.agents import Agents, Told
from benchmarks.gateway.ids import delivered
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import Stage, small_tokenizer

MOVES = 14  # of an episode's agents


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
    written = [each for each in policy.written if id(each.ids) in got]
    lost, foreign = delivered(branches, written, stage.tokenizer.decode)
    misread = sum(not _is_read(stage, told, call) for told, call in agents.asked)
    return collections.Counter(
        lost=lost,
        foreign=foreign,
        misread=misread,
        replies=len(got),
        tokens=sum(len(each.ids) for each in written),
        branches=len(branches),
        forks=tree.counts.forks,
        edited=tree.counts.edited,
        ambiguous=tree.counts.ambiguous,
        lost_calls=tree.counts.lost,
    )


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
