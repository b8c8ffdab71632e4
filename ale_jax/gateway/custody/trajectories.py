"""From the token tree of an episode to the trajectory that is trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ale_jax.gateway.custody.calls import Branch, Call, GivenTurn
from ale_jax.records import Episode, SideBranch, Trajectory, Turn
from ale_jax.worlds.replies import reply_text

Decode = Callable[[np.ndarray], str]


@dataclasses.dataclass(frozen=True)
class GivenTokens:
    """The reply of a turn that was not sampled in this episode."""

    ids: np.ndarray
    logp_mu: np.ndarray
    version: np.ndarray
    expert_TLK: np.ndarray | None = None
    mask_id: np.ndarray | None = None


def given_turn(turn: Turn) -> GivenTurn:
    reply = GivenTokens(turn.action_ids, turn.logp_mu, turn.version)
    return GivenTurn(turn.prompt_ids, turn.action_text, reply)


def trajectory_of(
    episode: Episode,
    branches: Sequence[Branch],
    start_version: int,
    decode: Decode,
    **more: Any,
) -> Trajectory:
    """Makes the trajectory that is trained on. branches: of the tree, the longest first; [] if the
    policy never wrote, for a trajectory without turns. In the conversation with the newest reply,
    each turn has the reward of its step, and the last one what is left of the episode's; the others
    have no reward. more: the other fields of the trajectory."""
    if not branches:
        return Trajectory(episode, (), start_version, **more)
    # Our own loop replays what it read of a reply, in which calls are in the form of a world's.
    text_of = decode if episode.cut_replies is None else None
    made = [_side_branch(branch, text_of) for branch in branches]
    newest = max(range(len(made)), key=lambda number: made[number].turns[-1].number)
    turns = _rewarded(made[newest].turns, episode)
    made[newest] = dataclasses.replace(made[newest], turns=turns)
    longest, *side = made
    return Trajectory(
        episode,
        longest.turns,
        start_version,
        expert_TLK=longest.expert_TLK,
        num_prefix_turns=longest.num_prefix_turns,
        side_branches=tuple(side),
        **more,
    )


def _rewarded(turns: tuple[Turn, ...], episode: Episode) -> tuple[Turn, ...]:
    """Spreads the episode's reward over its steps. Steps and replies correspond in our own loop,
    in order; of an agent's program only the outcome is known."""
    if episode.reward is None:
        return turns
    earned = [*episode.step_rewards[: len(turns) - 1]]
    earned += [0.0] * (len(turns) - 1 - len(earned))
    rewards = *earned, episode.reward - math.fsum(earned)
    return tuple(dataclasses.replace(turn, reward=r) for turn, r in zip(turns, rewards))


def _side_branch(branch: Branch, decode: Decode | None) -> SideBranch:
    turns = tuple(_turn(call, decode) for call in branch.calls)
    return SideBranch(turns, branch.num_shared, _experts(branch.calls))


def _turn(call: Call, decode: Decode | None) -> Turn:
    sampled = call.answer
    return Turn(
        prompt_ids=call.prompt_ids,
        action_ids=sampled.ids,
        logp_mu=sampled.logp_mu,
        logp_old=sampled.logp_mu,
        version=sampled.version,
        action_text=_action_text(call, decode),
        prompt_text="\n".join(m.content for m in call.messages if m.role != "system"),
        mask_id=sampled.mask_id,
        kind=call.kind,
        number=call.number,
    )


def _action_text(call: Call, decode: Decode | None) -> str:
    """The reply as our own loop got it, because an episode that continues after this turn replays
    it: special tokens within it are shown by name, and may have made it a malformed call.

    decode: of the episode of an agent's program, whose turns are not replayed. Where the gateway
    has told thoughts or calls apart for it, the text of the ids is taken.
    """
    reply = call.reply
    assert reply is not None, "only answered calls are turns"
    if call.is_given or not (reply.reasoning or reply.tool_calls):
        return reply.content
    if decode is not None:
        return decode(call.answer.ids)
    calls = [(each.name, each.arguments) for each in reply.tool_calls]
    return reply_text(reply.content, reply.reasoning, calls)


def _experts(calls: Sequence[Call]) -> np.ndarray | None:
    """Of all tokens of a conversation; -1 for the last one, which no forward pass has read. None if
    they are not recorded."""
    parts: list[np.ndarray] = []
    tokens = 0
    for call in calls:
        tokens += len(call.prompt_ids) + len(call.answer.ids)
        expert_TLK = call.answer.expert_TLK
        if expert_TLK is not None:
            # If the engine began a conversation for this call, it has told of everything before it.
            parts = [expert_TLK] if len(expert_TLK) == tokens - 1 else [*parts, expert_TLK]
    if not parts:
        return None
    expert_TLK = np.concatenate(parts)
    missing = tokens - len(expert_TLK)
    assert missing == 1, f"{missing} tokens without experts: only the last one is never read"
    return np.pad(expert_TLK, [(0, missing), (0, 0), (0, 0)], constant_values=-1)
