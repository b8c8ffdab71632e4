"""The file of a recording: one exchange of request and answer in each line, without any keys."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ale_jax import strict_json


@dataclasses.dataclass(frozen=True)
class Exchange:
    """path: with its query, below the API's address. request: JSON; None for a GET. kind: the
    answer's content type."""

    path: str
    request: Any
    status: int
    kind: str
    answer: str


def append(file: Path, exchange: Exchange) -> None:
    """The line is written at once, so that a program that ends leaves whole lines."""
    line = json.dumps(dataclasses.asdict(exchange)) + "\n"
    with file.open("a", encoding="utf-8") as recording:
        recording.write(line)


def read(file: Path) -> list[Exchange]:
    """ValueError, with the line's number, if it is no recording."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields, rest = strict_json.read_json(line)
            if rest.strip():
                raise ValueError(f"then {rest.strip():.40}")
            exchange = Exchange(**fields)
            types = {"path": str, "status": int, "kind": str, "answer": str}
            wrong = [name for name, kind in types.items() if type(fields[name]) is not kind]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: no exchange ({error})") from None
        if wrong or not exchange.path.startswith("/"):
            raise ValueError(f"{file}, line {number}: no exchange ({wrong or exchange.path!r})")
        found.append(exchange)
    return found


def difference(expected: Any, found: Any, place: str = "request") -> str:
    """Where two JSON values differ first, and how; empty if they do not."""
    if type(expected) is not type(found) or not isinstance(expected, dict | list):
        same = type(expected) is type(found) and expected == found
        return "" if same else f"{place}: {_short(found)} instead of {_short(expected)}"
    if isinstance(expected, list) and len(expected) != len(found):
        return f"{place}: {len(found)} entries instead of {len(expected)}"
    return next(filter(None, _differences(expected, found, place)), "")


def _differences(expected: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(expected, list):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield difference(*pair, f"{place}.{number}")
        return
    for name in [*expected, *(each for each in found if each not in expected)]:
        if name not in found:
            yield f"{place}.{name} is missing"
        elif name not in expected:
            yield f"{place}.{name} is new"
        else:
            yield difference(expected[name], found[name], f"{place}.{name}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
