"""Ids of a rendered conversation: those of its text as a whole, but that markers which others write
are ordinary tokens.

A marker is a token that stands for no text but for the structure of a conversation: `<|im_end|>`,
`<tool_call>`. If a tool's output could write one, it would be read as an instruction or a call.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
from tokenizers import Encoding, Tokenizer

from ale_jax.model.chat_render import Piece


class PieceEncoder:
    """Encodes texts by a tokenizer. Thread-safe by a lock, because whether special tokens count as
    text is stored in the tokenizer itself."""

    def __init__(self, tokenizer: Tokenizer, markers: Mapping[int, str], lock: threading.Lock):
        """markers: their names, by id, which have more than one letter. lock: of the tokenizer."""
        self._tokenizer, self._markers, self._lock = tokenizer, markers, lock
        self._normalizer = tokenizer.normalizer
        self._names = re.compile("|".join(map(re.escape, markers.values())) or "$.")

    def names_marker(self, text: str) -> bool:
        """Returns whether a text has the name of a marker, also once it is normalized."""
        texts = [text, self._normalizer.normalize_str(text)] if self._normalizer else [text]
        return any(map(self._names.search, texts))

    def text_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a text that may name special tokens."""
        return np.array(self._encode(text).ids, np.int32)

    def reply_ids(self, text: str, opening: str) -> np.ndarray:
        """Returns the ids that a reply has behind the opening of its turn. Special tokens that it
        names are ordinary text.

        Where reply and opening would share a token, the reply is encoded by itself, as no sampler
        can write a part of a token.
        """
        before = self._encode(opening, special=False).ids
        both = self._encode(opening + text, special=False).ids
        if both[: len(before)] == before:
            return np.array(both[len(before) :], np.int32)
        return np.array(self._encode(text, special=False).ids, np.int32)

    def ids_of(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Returns the ids of the pieces as one text, as transformers encodes it. A marker that is
        not the template's is cut behind its first character, so that ordinary tokens are left."""
        text = "".join(piece.text for piece in pieces)
        ends = list(accumulate(len(piece.text) for piece in pieces))

        def is_own(begin: int, end: int) -> bool:
            piece = bisect_right(ends, begin)
            return pieces[piece].own and end <= ends[piece]

        cuts, forged = {0, len(text)}, {0}
        while forged:  # a cut may uncover a marker that the first one covered
            cuts |= forged
            parts = list(pairwise(sorted(cuts)))
            encoded = [self._encode(text[begin:end]) for begin, end in parts]
            found = chain(*(self._spans(text, n, each) for (n, _), each in zip(parts, encoded)))
            forged = {begin + 1 for begin, end in found if not is_own(begin, end)}
        return np.array([id for each in encoded for id in each.ids], np.int32)

    def _spans(self, text: str, start: int, encoded: Encoding) -> Iterator[tuple[int, int]]:
        """Where the text has the markers that were found in a part of it. start: of the part."""
        for id, (begin, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if id in self._markers:
                # Some take the spaces around them, too.
                name = text[start + begin : start + end]
                begin += len(name) - len(name.lstrip())
                end -= len(name) - len(name.rstrip())
                yield start + begin, start + end

    def _encode(self, text: str, special: bool = True) -> Encoding:
        with self._lock:
            # By itself, as transformers' own wrapper takes as long as the encoding of a short text.
            self._tokenizer.encode_special_tokens = not special
            return self._tokenizer.encode(text, add_special_tokens=False)
