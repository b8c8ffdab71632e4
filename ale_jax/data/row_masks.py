"""The tables of sampling masks of packed rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ale_jax.records import FREE, Turn

Masks = Mapping[int, bytes]  # of a trajectory, by their number there


class RowMasks:
    """The sampling masks of a row, at most `most`, numbered as they are added.

    Each row has a table of the distinct masks of its trajectories, so that it can be sent to any
    host and placed on any device by itself. Trajectories of one group play one task, are mostly
    held to the same schemas, and share their masks.
    """

    def __init__(self, most: int):
        self._most = most
        self._number_of: dict[bytes, int] = {}

    def has_room(self, masks: Masks) -> bool:
        """Returns whether these masks fit in, too."""
        return len(self._number_of.keys() | masks.values()) <= self._most

    def add(self, masks: Masks) -> None:
        """Numbers those of the masks that are new. There has to be room."""
        assert self.has_room(masks), len(masks)
        for mask in masks.values():
            self._number_of.setdefault(mask, len(self._number_of))

    def fill(self, mask_Iw: np.ndarray) -> None:
        """Writes the table of the row."""
        for mask, number in self._number_of.items():
            mask_Iw[number] = np.frombuffer(mask, np.int32)

    def ids(self, turn: Turn, masks: Masks) -> np.ndarray:
        """Returns the turn's mask_id, with the numbers that `masks`, the trajectory's, have in the
        row."""
        if turn.mask_id is None:
            return np.full(len(turn.action_ids), FREE, np.int16)
        ids = turn.mask_id.copy()
        for number, mask in masks.items():
            ids[turn.mask_id == number] = self._number_of[mask]
        return ids
