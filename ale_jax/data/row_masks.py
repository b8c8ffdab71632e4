"""The sampling masks of a packed row.

Each row of a batch has a table of the distinct masks of its trajectories, so that it can be sent to
any host and placed on any device by itself. Trajectories of one group play one task, are mostly
held to the same schemas, and share their masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ale_jax.records import FREE, MAX_MASKS, Turn

Masks = Mapping[int, bytes]  # of a trajectory, by their number there


def used_masks(chunks: Sequence[Turn], mask_Iw: np.ndarray | None) -> Masks:
    """Those of a trajectory's masks that these chunks were sampled under."""
    ids = [turn.mask_id for turn in chunks if turn.mask_id is not None]
    numbers = np.unique(np.concatenate(ids)) if ids else ()
    return {int(n): mask_Iw[n].tobytes() for n in numbers if n >= 0}


class RowMasks:
    """At most MAX_MASKS, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._number_of: dict[bytes, int] = {}

    def has_room(self, masks: Masks) -> bool:
        return len(self._number_of.keys() | masks.values()) <= MAX_MASKS

    def add(self, masks: Masks) -> None:
        assert self.has_room(masks), len(masks)
        for mask in masks.values():
            self._number_of.setdefault(mask, len(self._number_of))

    def fill(self, mask_Iw: np.ndarray) -> None:
        """Writes the table of the row."""
        for mask, number in self._number_of.items():
            mask_Iw[number] = np.frombuffer(mask, np.int32)

    def ids(self, turn: Turn, masks: Masks) -> np.ndarray:
        """The turn's mask_id, with the numbers that the trajectory's `masks` have in the row."""
        if turn.mask_id is None:
            return np.full(len(turn.action_ids), FREE, np.int16)
        ids = turn.mask_id.copy()
        for number, mask in masks.items():
            ids[turn.mask_id == number] = self._number_of[mask]
        return ids
