"""The chunks of an episode: those of its replies that earn credit, in the order in which they were
written, over all of its conversations."""

from __future__ import annotations

from typing import NamedTuple

from ale_jax.config.credit import FILTERED, CreditHypers
from ale_jax.records import ReplyKind, Trajectory, Turn
from ale_jax.status import STATUS_RULES


class Chunk(NamedTuple):
    """A reply that earns credit. branch: the number of its conversation among those of the
    trajectory. turn: its number there. reward: its own."""

    branch: int
    turn: int
    reward: float


def chunks_of(trajectory: Trajectory, hp: CreditHypers) -> tuple[Chunk, ...]:
    """Returns the chunks of an episode.

    A reply without credit is none, so that it neither is the last one nor puts others further from
    the end. Its reward, such as an outcome that was judged after it, is that of the chunk before.
    The last chunk has the penalty of an overlong episode as well.
    """
    found: list[Chunk] = []
    for branch, number in _sampled(trajectory):
        turn = trajectory.branches[branch].turns[number]
        if _has_credit(turn, trajectory, hp):
            found.append(Chunk(branch, number, turn.reward))
        elif found:
            found[-1] = _with(found[-1], turn.reward)
    if found and (penalty := overlong_penalty(trajectory, hp)):
        found[-1] = _with(found[-1], penalty)
    return tuple(found)


def overlong_penalty(trajectory: Trajectory, hp: CreditHypers) -> float:
    """Returns what is added to the episode's outcome, because a limit ended it."""
    return hp.overlong_penalty if _is_overlong(trajectory) else 0.0


def _sampled(trajectory: Trajectory) -> list[tuple[int, int]]:
    """The places of the sampled replies, as in `Chunk`, in the order of their answers."""
    branches = trajectory.branches
    places = [
        (b, turn)
        for b, branch in enumerate(branches)
        for turn in range(branch.num_prefix_turns, len(branch.turns))
    ]
    return sorted(places, key=lambda place: branches[place[0]].turns[place[1]].number)


def _has_credit(turn: Turn, trajectory: Trajectory, hp: CreditHypers) -> bool:
    if hp.overlong == FILTERED and _is_overlong(trajectory):
        return False
    return turn.kind is not ReplyKind.CUT and turn.kind not in hp.uncredited


def _is_overlong(trajectory: Trajectory) -> bool:
    return STATUS_RULES[trajectory.episode.status].truncated


def _with(chunk: Chunk, reward: float) -> Chunk:
    return chunk._replace(reward=chunk.reward + reward)
