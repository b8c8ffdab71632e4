"""The guides of all slots as arrays of one dispatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ale_jax.engine.request import TokenConstraint
from ale_jax.model.guides import Guides, no_guides, num_words


class GuideTable:
    """Makes the guides of a dispatch. While no slot has any, the same empty arrays stay on the
    devices."""

    def __init__(self, slots: int, vocab_size: int, steps: int, place: jax.sharding.Sharding):
        self._size_nSw = steps, slots, num_words(vocab_size)
        self._size_SV, self._place = (slots, vocab_size), place
        self._none: Guides = jax.device_put(no_guides(slots, vocab_size, steps), place)

    def arrays(
        self, guided: Mapping[int, Sequence[TokenConstraint]], wants_top: Sequence[int]
    ) -> Guides:
        """Returns the guides of a dispatch. guided: constraints of the next tokens, by slot.
        wants_top: the slots whose most probable tokens are wanted."""
        guides = self._none
        if wants_top:
            guides = dataclasses.replace(guides, wants_top_S=self._flags(wants_top))
        if masked := [n for n, (first, *_) in guided.items() if first.allowed_w is not None]:
            allowed_nSw = np.zeros(self._size_nSw, np.int32)
            for slot in masked:
                for step, each in enumerate(guided[slot]):
                    assert each.allowed_w is not None, "all tokens of a reply are masked, or none"
                    allowed_nSw[step, slot, : len(each.allowed_w)] = each.allowed_w
            guides = dataclasses.replace(
                guides, is_masked_S=self._flags(masked), allowed_nSw=allowed_nSw
            )
        if biased := [n for n, (first, *_) in guided.items() if first.bias_V is not None]:
            bias_SV = np.zeros(self._size_SV, np.float32)
            for slot in biased:
                (only,) = guided[slot]
                bias_SV[slot] = only.bias_V
            guides = dataclasses.replace(guides, is_biased_S=self._flags(biased), bias_SV=bias_SV)
        return jax.device_put(guides, self._place) if guides is not self._none else guides

    def _flags(self, where: Sequence[int]) -> np.ndarray:
        flags_S = np.zeros((self._size_SV[0],), np.bool_)
        flags_S[where] = True
        return flags_S
