"""What accompanies a reply while it is written: who watches it, and what guides its next token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
    learner. is_guess: whether that may turn out to be wrong.
    """

    allowed_w: np.ndarray | None = None
    push_V: np.ndarray | None = None
    mask_id: int = FREE
    is_guess: bool = False


class Guide(Protocol):
    """Guides one reply. It is asked by the engine's thread, so it has to be quick."""

    def next(self, ids: np.ndarray, most: int) -> Sequence[NextToken]:
        """What holds for the next tokens, at most for `most`. It is certain for the first of them,
        and for those behind tokens that are the only ones allowed. For those that follow it may be
        guessed: a token that was drawn under a wrong guess is drawn again. Whether a guess is right
        depends on the tokens before it, and not on the one that is drawn, so the tokens are those
        that would be drawn one by one.

        ids: all of the reply so far. What it raises, the reply fails with.
        """


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

    def __init__(self, slots: int, vocab_size: int, steps: int, place: jax.sharding.Sharding):
        self._size_nSw = steps, slots, num_words(vocab_size)
        self._size_SV, self._place = (slots, vocab_size), place
        self._none: Guides = jax.device_put(no_guides(slots, vocab_size, steps), place)

    def arrays(self, guided: Mapping[int, Sequence[NextToken]], shows: Sequence[int]) -> Guides:
        """guided: by the slot's index. shows: indices of slots."""
        guides = self._none
        if shows:
            guides = guides.replace(shows_S=self._flags(shows))
        if restricted := [n for n, (held, *_) in guided.items() if held.allowed_w is not None]:
            allowed_nSw = np.zeros(self._size_nSw, np.int32)
            for slot in restricted:
                for step, held in enumerate(guided[slot]):
                    allowed_nSw[step, slot, : len(held.allowed_w)] = held.allowed_w
            guides = guides.replace(restricts_S=self._flags(restricted), allowed_nSw=allowed_nSw)
        if pushed := [n for n, (held, *_) in guided.items() if held.push_V is not None]:
            push_SV = np.zeros(self._size_SV, np.float32)
            for slot in pushed:
                (held,) = guided[slot]
                push_SV[slot] = held.push_V
            guides = guides.replace(pushes_S=self._flags(pushed), push_SV=push_SV)
        return jax.device_put(guides, self._place) if guides is not self._none else guides

    def _flags(self, where: Sequence[int]) -> np.ndarray:
        flags_S = np.zeros((self._size_SV[0],), np.bool_)
        flags_S[where] = True
        return flags_S
