"""The sampling masks of an episode's replies, as the learner needs them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.gateway.requests import ApiError
from ale_jax.records import FORCED, MASK_WORD, MAX_CUT_MASKS, MAX_MASKS


class MaskTable:
    """Numbers the distinct masks of an episode. Thread-safe: its replies may be written by several
    engines.

    A grammar allows the same tokens again and again, so a token needs no mask of its own, but the
    number of one. A schema that somebody chose may allow ever new ones: after MAX_MASKS, replies
    are refused. What top_k, top_p and min_p leave is another set for most tokens: there is room for
    MAX_CUT_MASKS.
    """

    def __init__(self, sampling: Sampling = PLAIN) -> None:
        """sampling: how the replies are drawn."""
        self.is_of_cuts = sampling.cuts
        self._most = MAX_CUT_MASKS if sampling.cuts else MAX_MASKS
        self._number_of: dict[bytes, int] = {}
        self._num_words: int | None = None
        self._lock = threading.Lock()

    def number(self, allowed_w: np.ndarray) -> int:
        """Returns the number of a mask, int32 [w], or FORCED if it allows a single token, which
        then needs no mask.

        Raises:
          ApiError: 400, if there is no room for another mask.
        """
        self._num_words = len(allowed_w)
        if only_token(allowed_w) is not None:
            return FORCED
        mask = allowed_w.tobytes()
        with self._lock:
            if mask not in self._number_of and len(self._number_of) == self._most:
                text = (
                    f"in training, an episode may draw from {self._most} different sets of tokens, "
                    "and this one needs more: use fewer schemas, shorten or drop maxLength, or end "
                    "the episode earlier"
                )
                raise ApiError(400, text)
            return self._number_of.setdefault(mask, len(self._number_of))

    def masks(self) -> np.ndarray | None:
        """Returns all masks, by number, int32 [I, w]; None if no token was ever held to one."""
        if self._num_words is None:
            return None
        with self._lock:
            masks = [np.frombuffer(mask, np.int32) for mask in self._number_of]
        return np.array(masks, np.int32).reshape(len(masks), self._num_words)


def only_token(allowed_w: np.ndarray) -> int | None:
    """Returns the only token that a mask, int32 [w], allows; None if it allows several, or none."""
    words = np.flatnonzero(allowed_w)
    bits = int(allowed_w[words[0]]) & 0xFFFFFFFF if len(words) == 1 else 0
    return int(MASK_WORD * words[0]) + bits.bit_length() - 1 if bits.bit_count() == 1 else None


def allows_only(allowed_w: np.ndarray, tokens: Sequence[int]) -> bool:
    """Returns whether a mask, int32 [w], allows none but these tokens."""
    others_w = allowed_w.view(np.uint32).copy()
    for token in tokens:
        others_w[token // MASK_WORD] &= ~np.uint32(1 << token % MASK_WORD)
    return not others_w.any()
