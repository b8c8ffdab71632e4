"""JSON values that can be passed on: Python's parser accepts more than any answer, prompt or hash
can hold."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 128  # templates, hashes and answers are written by recursion, which Python bounds


def flaw_of(value: Any) -> str:
    """Why a parsed value cannot be passed on; "" if it can."""
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        match each:
            case str() if not _is_text(each):
                return "half of a surrogate pair is no text"
            case float() if not math.isfinite(each):
                return "a number must be finite"
            case dict() | list() | tuple() if depth == MAX_DEPTH:
                return f"JSON may be nested {MAX_DEPTH} deep"
            case dict():
                waiting += [(part, depth + 1) for item in each.items() for part in item]
            case list() | tuple():
                waiting += [(part, depth + 1) for part in each]
    return ""


def without_flaw(value: Any) -> Any:
    """The value itself. ValueError if it cannot be passed on."""
    if flaw := flaw_of(value):
        raise ValueError(flaw)
    return value


def value_or_text(text: str) -> Any:
    """The JSON value that `text` writes; `text` itself if it writes none that can be passed on."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if flaw_of(value) else value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
