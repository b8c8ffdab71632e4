"""JSON that a policy or a client wrote: hostile, so that nothing of it is guessed."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str) -> tuple[Any, str]:
    """The JSON value that begins `text`, and what follows it. ValueError, with a short reason, if
    there is none."""
    try:
        value, end = _DECODER.raw_decode(text)
    except _KeyTwice:
        raise
    # ValueError includes numbers of extreme length; RecursionError is extreme nesting.
    except (ValueError, RecursionError):
        raise ValueError("malformed JSON") from None
    return value, text[end:]


class _KeyTwice(ValueError):
    """A key is given twice, so that its meaning is ambiguous."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise _KeyTwice("a key is given twice")
    return dict(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
