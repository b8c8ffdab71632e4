"""Named values out of a file that others wrote: taken with their type checked, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fields:
    """What a file says, by name. A field that is null counts as missing, as in transformers."""

    source: Path
    values: Mapping[str, Any]

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self.source}: {text}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def require(self, name: str, only: Any) -> None:
        """ValueError if the field is there with another value than the one that is supported."""
        if self.get(name, only) != only:
            raise self.error(f"{name} {self.get(name)!r:.80} is not supported, only {only!r} is")

    def count(self, name: str, default: int | None = None, most: int = 1 << 24) -> int:
        """An integer from 1 to `most`, which keeps a damaged file from filling the memory.

        ValueError if it is something else, or missing without a default.
        """
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(f"{name} {value!r:.40} must be an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number > 0. ValueError if it is something else, or missing without a default."""
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        if type(value) not in (int, float) or not value > 0:
            raise self.error(f"{name} {value!r:.40} must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} {value!r:.40} must be true or false")
        return value

    def items(self, name: str) -> list[Any]:
        """The items of a list; none if it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list):
            raise self.error(f"{name} {value!r:.40} must be a list")
        return value

    def part(self, name: str) -> Fields:
        """The fields within a field; none if it is missing."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{name} {value!r:.40} must be an object")
        return Fields(self.source, value)
