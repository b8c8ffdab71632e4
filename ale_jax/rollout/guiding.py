"""What accompanies a reply while it is written: who watches it, and what guides its next token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import jax
import numpy as np

from ale_jax.model.guides import Guides, no_guides
from ale_jax.model.sampling_masks import num_words
from ale_jax.records import FREE

# Given all ids of a reply so far: after how many of them it ends; None if it goes on.
Watch = Callable[[np.ndarray], int | None]


@dataclasses.dataclass(frozen=True)
class NextToken:
    """What holds for the next token of a reply.

    allowed_w: bit fields as in `model.guides.Guides`; None if every token is. push_V: float32, what
    is added to the logits; None if nothing is. mask_id: as in `Turn`, of who keeps masks for the
    learner.
    """

    allowed_w: np.ndarray | None = None
    push_V: np.ndarray | None = None
    mask_id: int = FREE


class Guide(Protocol):
    """Guides one reply. It is asked by the engine's thread, so it has to be quick."""

    def next(self, ids: np.ndarray) -> NextToken:
        """ids: all of the reply so far. What it raises, the reply fails with."""


@dataclasses.dataclass(frozen=True)
class Company:
    """What accompanies a reply. watch: called after each dispatch that wrote something for it, by
    the engine's thread. top_logprobs: of how many most probable tokens the log-probabilities are
    wanted. priority: replies of a higher one are written first, and take the place of others."""

    watch: Watch | None = None
    guide: Guide | None = None
    top_logprobs: int = 0
    priority: int = 0


ALONE = Company()


class GuideTable:
    """Makes the guides of a dispatch. As long as there are none, they stay where they are on the
    devices."""

    def __init__(self, slots: int, vocab_size: int, place: jax.sharding.Sharding):
        self._slots, self._vocab_size, self._place = slots, vocab_size, place
        self._none: Guides = jax.device_put(no_guides(slots, vocab_size), place)

    def arrays(self, guided: Mapping[int, NextToken], shows: Mapping[int, bool]) -> Guides:
        """guided, shows: by the slot's index."""
        guides = self._none
        if any(shows.values()):
            guides = guides.replace(shows_S=_flags(self._slots, [n for n in shows if shows[n]]))
        restricted = {n: each.allowed_w for n, each in guided.items() if each.allowed_w is not None}
        if restricted:
            allowed_Sw = np.zeros((self._slots, num_words(self._vocab_size)), np.int32)
            for n, allowed_w in restricted.items():
                allowed_Sw[n, : len(allowed_w)] = allowed_w
            flags_S = _flags(self._slots, restricted)
            guides = guides.replace(restricts_S=flags_S, allowed_Sw=allowed_Sw)
        pushed = {n: each.push_V for n, each in guided.items() if each.push_V is not None}
        if pushed:
            push_SV = np.zeros((self._slots, self._vocab_size), np.float32)
            for n, push_V in pushed.items():
                push_SV[n] = push_V
            guides = guides.replace(pushes_S=_flags(self._slots, pushed), push_SV=push_SV)
        return jax.device_put(guides, self._place) if guides is not self._none else guides


def _flags(slots: int, where) -> np.ndarray:
    flags_S = np.zeros((slots,), np.bool_)
    flags_S[list(where)] = True
    return flags_S
