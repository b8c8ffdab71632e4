"""The states in which chunks were written: what members of a group have in common.

For GiGPO and HGPO (`anchors`, `recent_anchors`) a state is what the world has shown, because two
wordings of one command lead to the same state. For a tree (`nodes`) it is also what was done: where
the world stays silent, members that did different things would otherwise be in one state, and what
they did would have no credit.

rows: the number of each trajectory's group, and the trajectory. chunks: those of each row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ale_jax.learn.chunks import Chunk
from ale_jax.records import Trajectory

Rows = Sequence[tuple[int, Trajectory]]
Chunks = Sequence[Sequence[Chunk]]


def anchors(rows: Rows, chunks: Chunks, max_chunks: int) -> np.ndarray:
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
        before = {}  # the place of a turn -> the state before its reply
        for b, branch in enumerate(trajectory.branches):
            state = -1
            for k, turn in enumerate(branch.turns):
                state = states.setdefault((group, state, turn.prompt_text), len(states))
                before[b, k] = state
        for c, chunk in enumerate(chunks[n]):
            anchor_NC[n, c] = first_row.setdefault(before[chunk.branch, chunk.turn], n)
    return anchor_NC


def recent_anchors(rows: Rows, chunks: Chunks, max_chunks: int, depth: int) -> np.ndarray:
    """Finds, for each chunk and k = 1..depth, the first chunk of its group, by its index in N x C,
    before which the last k observations were the same. A chunk before which there were fewer is in
    no state of k observations, and has its own index."""
    own_NC = np.arange(len(rows) * max_chunks, dtype=np.int32).reshape(-1, max_chunks)
    anchor_NCH = np.repeat(own_NC[:, :, None], depth, axis=2)
    first: dict[tuple[object, ...], int] = {}
    for n, (group, trajectory) in enumerate(rows):
        for c, chunk in enumerate(chunks[n]):
            turns, end = trajectory.branches[chunk.branch].turns, chunk.turn + 1
            for k in range(1, min(depth, end) + 1):
                state = (group, *(turn.prompt_text for turn in turns[end - k : end]))
                anchor_NCH[n, c, k - 1] = first.setdefault(state, own_NC[n, c])
    return anchor_NCH


def nodes(rows: Rows, chunks: Chunks, max_chunks: int) -> np.ndarray:
    """Finds, for each chunk, the first row that had done and seen the same before it, int32 [N, C].

    Actions are compared by their text, and over all conversations of the episode: who shares a node
    shares all nodes before it.
    """
    node_NC = np.zeros((len(rows), max_chunks), np.int32)
    numbers: defaultdict[tuple[int, int | str], int] = defaultdict(lambda: len(numbers))
    first_row: dict[int, int] = {}
    for n, (group, trajectory) in enumerate(rows):
        before, after = {}, {}  # the place of a turn -> its conversation before and after its reply
        for b, branch in enumerate(trajectory.branches):
            conversation = -1
            for k, turn in enumerate(branch.turns):
                before[b, k] = numbers[conversation, turn.prompt_text]
                conversation = after[b, k] = numbers[before[b, k], turn.action_text]
        path = numbers[-1, group]
        for c, chunk in enumerate(chunks[n]):
            place = chunk.branch, chunk.turn
            node = numbers[path, before[place]]
            node_NC[n, c] = first_row.setdefault(node, n)
            path = numbers[node, after[place]]
    return node_NC
