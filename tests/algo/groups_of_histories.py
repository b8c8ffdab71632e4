"""Groups of trajectories that saw short words, with rewards, for the estimators that compare
states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.advantages import credit_chunks
from ale_jax.data.replay import Group
from ale_jax.learn.credit import tabulate_rewards
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn


def member(group, number, seen, outcome, valid=True, did=None):
    """A trajectory with a chunk after each of `seen`. outcome: of the last chunk. did: what each
    chunk was; all are the same if this is None."""
    turns = [
        dataclasses.replace(make_turn([1], [2]), prompt_text=shown, action_text=action)
        for shown, action in zip(seen, did or [""] * len(seen), strict=True)
    ]
    if turns:
        turns[-1] = dataclasses.replace(turns[-1], reward=outcome)
    status = Status.FINISHED if valid else Status.SANDBOX_LOST
    return make_trajectory(group, number, turns, status=status, reward=outcome if valid else None)


def random_groups(
    seed, groups=3, members=6, length=5, words="ab", outcomes=(0.0, 1.0), actions="x"
):
    """Groups of trajectories of 1 to `length` chunks; one in six is invalid. words, actions: what
    is seen and done."""
    draw = np.random.default_rng(seed)
    made = []
    for group in range(groups):
        trajectories = []
        for number in range(members):
            seen = ["task", *draw.choice(list(words), draw.integers(0, length))]
            outcome, valid = float(draw.choice(outcomes)), draw.random() > 1 / 6
            did = [actions[draw.integers(len(actions))] for _ in seen] if actions[1:] else None
            trajectories.append(member(group, number, seen, outcome, valid, did))
        made.append(Group(group, tuple(trajectories)))
    return made


def credit(groups, hp, gamma=1.0, max_chunks=6):
    """The advantages [N, C]."""
    rewards = tabulate_rewards(groups, max_chunks, hp.anchor_depth).rewards
    arrays = jax.tree.map(jnp.asarray, rewards)
    return np.asarray(credit_chunks(arrays, len(groups), gamma, hp).advantage_NC)
