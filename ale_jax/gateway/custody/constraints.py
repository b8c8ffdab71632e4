"""The guides of a reply: its grammar, and the biases and penalties of its logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import llguidance
import llguidance.numpy
import numpy as np

from ale_jax.engine.request import Guide, TokenConstraint
from ale_jax.gateway.custody.sampling_masks import MaskTable, allows_only, only_token
from ale_jax.gateway.requests import ApiError
from ale_jax.records import FREE


class Grammar:
    """Constrains one reply to a grammar. After what the grammar allows, the reply ends."""

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
        self._num_consumed = 0  # tokens that the matcher has consumed
        self._masks = masks

    def next(self, ids: np.ndarray, most: int) -> Sequence[TokenConstraint]:
        for token in ids[self._num_consumed :].tolist():
            self._consume(token)
        self._num_consumed = len(ids)
        found, ahead = [self._here()], 0
        while len(found) < most and not self._matcher.is_stopped():
            forced = _only_allowed(found[-1])
            if forced is None:
                break
            self._consume(forced)
            ahead += 1
            found.append(self._here())
        self._matcher.rollback(ahead)
        if _only_allowed(found[-1]) is None:
            # As after a character within a string.
            found += [dataclasses.replace(found[-1], is_speculative=True)] * (most - len(found))
        return found

    def _consume(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._require_going_on()

    def _here(self) -> TokenConstraint:
        """The constraint of the matcher's next token."""
        if not self._matcher.is_stopped():
            llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask_1w, 0)
            allowed_w = self._mask_1w[0].copy()
        else:
            allowed_w = self._end_w.view(np.int32)
        self._require_going_on()
        mask_id = FREE if self._masks is None else self._masks.number(allowed_w)
        return TokenConstraint(allowed_w, mask_id=mask_id)

    def _require_going_on(self) -> None:
        """ApiError (400) if the matcher has given up, as on what is too complex: it would call that
        the end."""
        if error := self._matcher.get_error():
            raise ApiError(400, f"the grammar cannot be followed any further: {error:.300}")


@dataclasses.dataclass(frozen=True)
class LogitsBias:
    """What is added to logits.

    frequency: is subtracted for each time that the reply has a token; presence: once, if it has
    it. bias: by token. min_tokens: before one of `stop_ids` may be sampled.
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

    def next(self, ids: np.ndarray, most: int) -> Sequence[TokenConstraint]:
        return [TokenConstraint(bias_V=self.bias_V(ids, may_end=len(ids) >= self.min_tokens))]

    def bias_V(self, ids: np.ndarray, may_end: bool) -> np.ndarray:
        """Returns what is added to the logits of the next token, float32 [V]. may_end: whether the
        reply may end here."""
        count_V = np.bincount(ids, minlength=self.vocab_size).astype(np.float32)
        bias_V = -self.frequency * count_V - self.presence * (count_V > 0)
        bias_V = bias_V.astype(np.float32)
        for token, value in self.bias.items():
            bias_V[token] += value
        if not may_end:
            bias_V[list(self.stop_ids)] = -np.inf
        return bias_V


@dataclasses.dataclass(frozen=True)
class GrammarAndBias:
    """A reply that the grammar allows only to end does so, also before `min_tokens`."""

    grammar: Guide
    bias: LogitsBias

    def next(self, ids: np.ndarray, most: int) -> Sequence[TokenConstraint]:
        (found,) = self.grammar.next(ids, 1)
        has_enough = len(ids) >= self.bias.min_tokens
        assert found.allowed_w is not None, "a grammar says which tokens it allows"
        may_end = has_enough or allows_only(found.allowed_w, self.bias.stop_ids)
        return [dataclasses.replace(found, bias_V=self.bias.bias_V(ids, may_end))]


def _only_allowed(constraint: TokenConstraint) -> int | None:
    """The only token that a grammar's constraint allows; None if it allows several."""
    assert constraint.allowed_w is not None, "a grammar says which tokens it allows"
    return only_token(constraint.allowed_w)
