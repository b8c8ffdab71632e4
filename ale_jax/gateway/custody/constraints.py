"""Guides of a reply: the grammar that it is held to, and what makes tokens more probable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import llguidance
import llguidance.numpy
import numpy as np

from ale_jax.engine.guiding import Guide, NextToken
from ale_jax.gateway.custody.sampling_masks import MaskTable, allows_only, only_token
from ale_jax.gateway.requests import ApiError
from ale_jax.records import FREE


class Grammar:
    """Holds one reply to a grammar. After what it allows, the reply ends."""

    def __init__(
        self,
        tokenizer: llguidance.LLTokenizer,
        lark: str,
        stop_id: int,
        masks: MaskTable | None = None,
    ):
        """masks: keeps what was allowed, if the reply is trained on.

        ValueError if the grammar is none, or needs what cannot be done.
        """
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        if error := self._matcher.get_error():
            raise ValueError(f"not a schema that a reply can be held to: {error:.300}")
        self._mask_1w = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._end_w = np.zeros(self._mask_1w.shape[1], np.uint32)
        self._end_w[stop_id // 32] = np.uint32(1) << np.uint32(stop_id % 32)
        self._read = 0  # tokens that the matcher has taken
        self._masks = masks

    def next(self, ids: np.ndarray, most: int) -> Sequence[NextToken]:
        for token in ids[self._read :].tolist():
            self._take(token)
        self._read = len(ids)
        held, ahead = [self._here()], 0
        while len(held) < most and not self._matcher.is_stopped():
            forced = only_token(held[-1].allowed_w)
            if forced is None:
                break
            self._take(forced)
            ahead += 1
            held.append(self._here())
        self._matcher.rollback(ahead)
        if only_token(held[-1].allowed_w) is None:
            # As after a character within a string.
            held += [dataclasses.replace(held[-1], is_guess=True)] * (most - len(held))
        return held

    def _take(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._require_going_on()

    def _here(self) -> NextToken:
        """What holds for the token that comes next in the matcher."""
        if not self._matcher.is_stopped():
            llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask_1w, 0)
            allowed_w = self._mask_1w[0].copy()
        else:
            allowed_w = self._end_w.view(np.int32)
        self._require_going_on()
        mask_id = FREE if self._masks is None else self._masks.number(allowed_w)
        return NextToken(allowed_w, mask_id=mask_id)

    def _require_going_on(self) -> None:
        """ApiError (400) if the matcher has given up, as on what is too complex: it would call that
        the end."""
        if error := self._matcher.get_error():
            raise ApiError(400, f"the grammar cannot be followed any further: {error:.300}")


@dataclasses.dataclass(frozen=True)
class Pushes:
    """What is added to logits.

    frequency: is subtracted for each time that the reply has a token; presence: once, if it has
    it. bias: by token. min_tokens: before one of `stop_ids` may be written.
    """

    vocab_size: int
    frequency: float = 0.0
    presence: float = 0.0
    bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        wrong = [token for token in self.bias if not 0 <= token < self.vocab_size]
        if wrong:
            raise ValueError(f"logit_bias names token {wrong[0]}: there are {self.vocab_size}")

    def next(self, ids: np.ndarray, most: int) -> Sequence[NextToken]:
        return [NextToken(push_V=self.push_V(ids, may_end=len(ids) >= self.min_tokens))]

    def push_V(self, ids: np.ndarray, may_end: bool) -> np.ndarray:
        """may_end: whether the reply may end here."""
        count_V = np.bincount(ids, minlength=self.vocab_size).astype(np.float32)
        push_V = -self.frequency * count_V - self.presence * (count_V > 0)
        push_V = push_V.astype(np.float32)
        for token, value in self.bias.items():
            push_V[token] += value
        if not may_end:
            push_V[list(self.stop_ids)] = -np.inf
        return push_V


@dataclasses.dataclass(frozen=True)
class Both:
    """A reply that the grammar allows only to end does so, also before `min_tokens`."""

    grammar: Guide
    pushes: Pushes

    def next(self, ids: np.ndarray, most: int) -> Sequence[NextToken]:
        (held,) = self.grammar.next(ids, 1)
        has_enough = len(ids) >= self.pushes.min_tokens
        may_end = has_enough or allows_only(held.allowed_w, self.pushes.stop_ids)
        return [dataclasses.replace(held, push_V=self.pushes.push_V(ids, may_end))]
