"""What is trained on, against what was sampled."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ale_jax.gateway.custody.calls import Branch
from ale_jax.gateway.custody.trajectories import trajectory_of
from ale_jax.records import Episode, EpisodeKey, SideBranch, Task, Trajectory, Turn
from ale_jax.status import Status
from benchmarks.gateway.scripted import Written

KEY = EpisodeKey("train", 0, 0, Task("count", 0, "train"))
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 1, 0, 1.0, 0.0)

# A reply: what comes before it, its ids, the versions that sampled them.
Delivered = tuple[bytes, bytes, tuple[int, ...]]


def delivered(
    branches: Sequence[Branch], written: Iterable[Written], decode: Callable[[np.ndarray], str]
) -> tuple[int, int]:
    """Tokens that were written and that no branch trains on, in their context; and those that one
    trains on, and that were not written so, or are trained on already."""
    wanted = collections.Counter(map(_written, written))
    found = collections.Counter(trained(trajectory_of(EPISODE, branches, 0, decode)))
    return _tokens(wanted - found), _tokens(found - wanted)


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
