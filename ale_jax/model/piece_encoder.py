"""Ids of a rendered conversation: those of its text as a whole, but that markers which others write
are ordinary tokens.

A marker is a token that stands for no text but for the structure of a conversation: `<|im_end|>`,
`<tool_call>`. If a tool's output could write one, it would be read as an instruction or a call.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer

from ale_jax.model.chat_render import MAX_KEPT_CHARS
from ale_jax.model.slots import Piece

MAX_TEXTS = 4096  # of a template, whose ids are kept
Span = tuple[int, int]  # of a text: its start, and where it stops
T = TypeVar("T")


class PieceEncoder:
    """Encodes texts by a tokenizer. Thread-safe by a lock, because whether special tokens count as
    text is stored in the tokenizer itself."""

    def __init__(
        self, tokenizer: Tokenizer, markers: Mapping[int, AddedToken], lock: threading.Lock
    ):
        """markers: by id; their names have more than one letter. lock: of the tokenizer."""
        self._tokenizer, self._markers, self._lock = tokenizer, markers, lock
        self._normalizer = tokenizer.normalizer
        names = (re.escape(each.content) for each in markers.values())
        self._names = re.compile("|".join(names) or "$.")
        self._starts = _kept(self._starts_of_markers)
        self._own_ids = _kept(lambda text: self._encode(text).ids)

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
        cuts = {0, len(text)}

        def is_own(span: Span) -> bool:
            piece = bisect_right(ends, span[0])
            return pieces[piece].own and span[1] <= ends[piece]

        for piece, end in zip(pieces, ends, strict=True):
            if piece.own:
                cuts.update(end - len(piece.text) + start for start in self._starts(piece.text))
        ids: list[int] = []
        for span in pairwise(sorted(cuts)):
            ids += (
                self._own_ids(text[slice(*span)]) if is_own(span) else self._ids(text, span, is_own)
            )
        return np.array(ids, np.int32)

    def _starts_of_markers(self, text: str) -> tuple[int, ...]:
        """Where a text that is the template's can be cut without other ids: before each marker that
        does not depend on what is before it."""
        found = ((self._markers[id], n) for _, id, (n, _) in self._found(self._encode(text), text))
        return tuple(n for marker, n in found if not (marker.lstrip or marker.single_word))

    def _ids(self, text: str, span: Span, is_own: Callable[[Span], bool]) -> list[int]:
        """The ids of a part of a text, without markers that are not the template's."""
        begin, end = span
        encoded = self._encode(text[begin:end])
        found = self._found(encoded, text[begin:end])
        places = [(n, (begin + start, begin + stop)) for n, _, (start, stop) in found]
        forged = {n: span for n, span in places if not is_own(span)}
        # In each part a marker may be uncovered that another one had covered.
        cuts = [start + 1 for start, stop in forged.values() if stop - start > 1]
        if cuts:
            parts = pairwise([begin, *cuts, end])
            return [id for part in parts for id in self._ids(text, part, is_own)]
        # A letter that is normalized to a whole marker cannot be cut.
        return [id for n, id in enumerate(encoded.ids) if n not in forged]

    def _found(self, encoded: Encoding, text: str) -> Iterator[tuple[int, int, Span]]:
        """The markers in an encoded text: their place among the ids, id and span."""
        for place, id in enumerate(encoded.ids):
            if id in self._markers:
                # Of this token alone: a list of all takes as long as half of the encoding.
                start, stop = encoded.token_to_chars(place)
                name = text[start:stop]  # with the white space around it, if the token takes that
                lead, trail = len(name) - len(name.lstrip()), len(name) - len(name.rstrip())
                yield place, id, (start + lead, stop - trail)

    def _encode(self, text: str, special: bool = True) -> Encoding:
        with self._lock:
            # By itself, as transformers' own wrapper takes as long as the encoding of a short text.
            self._tokenizer.encode_special_tokens = not special
            return self._tokenizer.encode(text, add_special_tokens=False)


def _kept(function: Callable[[str], T]) -> Callable[[str], T]:
    """A function of texts that remembers its results, but not those of very long texts."""
    remembering = lru_cache(MAX_TEXTS)(function)
    return lambda text: (remembering if len(text) <= MAX_KEPT_CHARS else function)(text)
