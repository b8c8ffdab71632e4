"""Plain texts, from which a policy learns before it learns from conversations (continued
pre-training)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ale_jax.data.packing import Sample, demonstration
from ale_jax.model.tokenizer import ChatTokenizer


@dataclasses.dataclass(frozen=True)
class Text:
    """A document. reward: as of a conversation."""

    text: str
    reward: float | None = None

    @property
    def beginning(self) -> bytes:
        """A digest of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()


def of_text(record: Mapping[str, Any], reward: float | None) -> Text:
    """Reads `text`. ValueError, which begins with the field, if it is none."""
    text = record["text"]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text: {text!r:.80} is no text")
    return Text(text, reward)


def text_samples(text: str, tokenizer: ChatTokenizer, length: int) -> list[Sample]:
    """Returns samples of at most `length` tokens, in which each token of the text, and its end, is
    learned once. The first is learned behind the token that ends texts, and the first of each
    further sample behind the one before it alone. Special tokens that the text names are text.

        >>> from ale_jax.model.tokenizer import train_bpe
        >>> tokenizer = ChatTokenizer(train_bpe([], 300))
        >>> [sample.num_tokens for sample in text_samples("abcde", tokenizer, length=4)]
        [4, 4]
    """
    end = tokenizer.end_of_text
    ids = np.concatenate([[end], tokenizer.plain_ids(text), [end]]).astype(np.int32)
    starts = range(0, len(ids) - 1, length - 1)
    return [
        demonstration([(ids[start : start + 1], ids[start + 1 : start + length])])
        for start in starts
    ]
