"""JSON values that can be passed on: Python's parser accepts more than any answer, prompt or hash
can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 128  # templates, hashes and answers are written by recursion, which Python bounds


def flaw_of(value: Any) -> str:
    """Returns why a parsed value cannot be passed on; "" if it can."""
    waiting: list[tuple[Iterable[Any], int]] = [((value,), 0)]
    while waiting:
        parts, depth = waiting.pop()
        for each in parts:
            if isinstance(each, str):
                if not (each.isascii() or _is_text(each)):
                    return "half of a surrogate pair is no text"
            elif isinstance(each, float):
                if not math.isfinite(each):
                    return "a number must be finite"
            elif isinstance(each, dict | list | tuple):
                if depth == MAX_DEPTH:
                    return f"JSON may be nested {MAX_DEPTH} deep"
                waiting.append((each, depth + 1))  # of an object, the keys
                if isinstance(each, dict):
                    waiting.append((each.values(), depth + 1))
    return ""


def without_flaw(value: Any) -> Any:
    """Returns the value itself. ValueError if it cannot be passed on."""
    if flaw := flaw_of(value):
        raise ValueError(flaw)
    return value


def value_or_text(text: str) -> Any:
    """Returns the JSON value that `text` writes; `text` itself if it writes none that can be passed
    on."""
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
