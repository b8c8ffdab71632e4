"""Selects parts of a step: segments that one pass needs, and chunks that are worth imitating.

Selected segments are repacked into fewer batches of the same shape, so that a pass over some of the
trajectories costs only their share. The chunk masks m_err and m_task are those of Eq 1 of
arXiv 2512.24873: a masked chunk has no loss, but stays in the context of later chunks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Move:
    """Where a segment was and where it goes, each as (batch, row, tokens).

    number: of the segment in its new row, from 1.
    """

    old: tuple[int, int, slice[int, int]]
    new: tuple[int, int, slice[int, int]]
    number: int


@dataclasses.dataclass(frozen=True)
class Selection:
    """The segments that were chosen, and how they are repacked.

    moves: one per chosen segment. batches: how many they fill, of `shape` (rows, tokens).
    """

    moves: tuple[Move, ...]
    batches: int
    shape: tuple[int, int]

    def take(self, arrays: Sequence[np.ndarray], padding: float = 0) -> list[np.ndarray]:
        """Copies the chosen segments from an array [B, T, ...] per old batch to the new batches."""
        shape = self.shape + arrays[0].shape[2:]
        taken = [np.full(shape, padding, arrays[0].dtype) for _ in range(self.batches)]
        for move in self.moves:
            (z, b, old), (new_z, new_b, new) = move.old, move.new
            taken[new_z][new_b, new] = arrays[z][b, old]
        return taken

    def segments(self) -> list[np.ndarray]:
        """Returns segment_BT of the new batches: 1.. in each row, 0 for padding."""
        numbers = [np.zeros(self.shape, np.int32) for _ in range(self.batches)]
        for move in self.moves:
            z, b, new = move.new
            numbers[z][b, new] = move.number
        return numbers

    def put_back(
        self, taken: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Returns copies of `arrays`, of the old batches, in which the chosen segments are those of
        `taken`."""
        arrays = [array.copy() for array in arrays]
        for move in self.moves:
            (z, b, old), (new_z, new_b, new) = move.old, move.new
            arrays[z][b, old] = taken[new_z][new_b, new]
        return arrays


def select_segments(
    segments: Sequence[np.ndarray], wanted: Sequence[np.ndarray], per_row: int | None = None
) -> Selection:
    """Chooses the segments that have a wanted token, at most `per_row` for a row (None: as many as
    fit).

    segments: segment_BT of each batch, as in `Batch`. wanted: bool [B, T] of each batch. Longer
    segments are placed first, in the first row with room, as `packing.pack` does. Each fits a row,
    because it came from a row.

    Of two batches of one row each, the second segment of the first and the first of the second are
    wanted, and fit one row. The longer one is placed first:

        >>> segments = [np.array([[1, 1, 1, 2]]), np.array([[1, 1, 2, 0]])]
        >>> wanted = [np.array([[0, 0, 0, 1]]) > 0, np.array([[1, 0, 0, 0]]) > 0]
        >>> chosen = select_segments(segments, wanted)
        >>> chosen.batches, chosen.segments()[0].tolist()
        (1, [[1, 1, 2, 0]])
        >>> chosen.take([np.array([[10, 11, 12, 13]]), np.array([[20, 21, 22, 0]])])[0].tolist()
        [[20, 21, 13, 0]]
    """
    rows, tokens = segments[0].shape if segments else (0, 0)
    most = tokens if per_row is None else per_row
    chosen = sorted(_chosen(segments, wanted), key=lambda each: -_length(each))
    used: list[list[int]] = []  # of each new row: tokens, segments
    moves = []
    for z, b, old in chosen:
        size = old.stop - old.start
        fits = (n for n, (t, s) in enumerate(used) if t + size <= tokens and s < most)
        row = next(fits, len(used))
        if row == len(used):
            used.append([0, 0])
        start = used[row][0]
        used[row] = [start + size, used[row][1] + 1]
        new = (*divmod(row, rows), slice(start, start + size))
        moves.append(Move((z, b, old), new, used[row][1]))
    return Selection(tuple(moves), -(-len(used) // rows) if used else 0, (rows, tokens))


def _chosen(
    segments: Sequence[np.ndarray], wanted: Sequence[np.ndarray]
) -> Iterator[tuple[int, int, slice[int, int]]]:
    """Yields (batch, row, tokens) of each segment with a wanted token."""
    for z, (segment_BT, wanted_BT) in enumerate(zip(segments, wanted, strict=True)):
        for b, (segment_T, wanted_T) in enumerate(zip(segment_BT, wanted_BT, strict=True)):
            for number in np.unique(segment_T[wanted_T & (segment_T > 0)]):
                places = np.flatnonzero(segment_T == number)
                yield z, b, slice(int(places[0]), int(places[-1]) + 1)


def _length(chosen: tuple[int, int, slice[int, int]]) -> int:
    return chosen[2].stop - chosen[2].start


_WORD = re.compile(r"[^\s\"'{}:,<>]+")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What was written in one turn, what came back, and whether the runtime recorded an error.

    An error is no valid call, an exit code other than 0, or a timeout.
    """

    action: str
    observation: str
    failed: bool


def error_mask(chunks: Sequence[Chunk]) -> np.ndarray:
    """Returns m_err, bool [C]: False where the turn's call met an error."""
    return np.array([not chunk.failed for chunk in chunks], bool)


def relevance_mask(chunks: Sequence[Chunk]) -> np.ndarray:
    """Returns m_task, bool [C]: False for a turn that nearly repeats an earlier one, with the same
    answer.

    Nearly: the same words in the same order, ignoring white space, quotes and options (words that
    begin with "-"). The answers must be identical, because a repeated command that answers
    differently has done something.

    The second call repeats the first one, and the third one sees what has changed:

        >>> calls = [("ls -l", "a.txt"), ("ls", "a.txt"), ("ls", "a.txt b.txt")]
        >>> relevance_mask([Chunk(call, answer, failed=False) for call, answer in calls]).tolist()
        [True, False, True]
    """
    seen: set[tuple[tuple[str, ...], str]] = set()
    mask = []
    for chunk in chunks:
        words = tuple(w for w in _WORD.findall(chunk.action) if not w.startswith("-"))
        mask.append((words, chunk.observation) not in seen)
        seen.add((words, chunk.observation))
    return np.array(mask, bool)
