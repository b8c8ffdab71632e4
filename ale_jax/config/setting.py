"""Fields of a config that say what they mean and which values they may have.

    @dataclasses.dataclass(frozen=True)
    class Turns(Settings):
        limit: int = setting(10, "replies of an episode.", at_least=1)

`Turns(0)` is then refused: "limit 0 must be at least 1".
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, TypeVar, cast

T = TypeVar("T")
# Named values, which only their reader knows; a config may write them as a dict.
Options = tuple[tuple[str, str | int | float | bool | tuple[str, ...]], ...]
Weights = tuple[tuple[str, float], ...]  # as well
FACTS = "setting"  # the key of a field's metadata


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a field beside its type and default.

    meaning: for docs/config.md. choices: the allowed texts, of a tuple those of its items.
    at_least, above: a lower bound that is or is not allowed itself; at_most, below: an upper one.
    remedy: what a person who gave a wrong value should know.
    """

    meaning: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    remedy: str = ""

    @property
    def rule(self) -> str:
        """What a value must be, to be read after "must be"; empty if there is no bound."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if low is None and high is None:
            return ""
        if low is None:
            rule = f"below {high}" if self.at_most is None else f"at most {high}"
        elif high is None:
            rule = f"above {low}" if self.at_least is None else f"at least {low}"
        else:
            opening, closing = "[("[self.at_least is None], "])"[self.at_most is None]
            rule = f"in {opening}{low}, {high}{closing}"
        return f"{rule}: {self.remedy}" if self.remedy else rule

    def admits(self, number: float) -> bool:
        """Tells whether a number is within the bounds. nan is not, for every comparison with it
        fails."""
        return (
            number == number
            and abs(number) != math.inf
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )


def setting(default: T, meaning: str, **facts: Any) -> T:
    """Declares a field of a `Settings` class. facts: the other fields of `Facts`."""
    metadata = {FACTS: Facts(meaning, **facts)}
    return cast(T, dataclasses.field(default=default, metadata=metadata))


def section(kind: type[T], **defaults: Any) -> T:
    """Declares a field that holds settings of their own. defaults: those that differ from the
    kind's."""
    return cast(T, dataclasses.field(default_factory=functools.partial(kind, **defaults)))


def facts_of(field: dataclasses.Field[Any]) -> Facts | None:
    """Returns the facts of a field; None for a section."""
    return field.metadata.get(FACTS)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A dataclass that refuses values which the facts of its fields exclude.

    A subclass whose `__post_init__` holds rules across fields calls this one's first. OWNER: what
    errors name before the field.
    """

    OWNER = ""  # not annotated, or else it would be a field

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if facts := facts_of(field):
                _check(self.OWNER + field.name, getattr(self, field.name), facts)


def _check(name: str, value: Any, facts: Facts) -> None:
    if facts.choices:
        several = isinstance(value, tuple)
        for each in value if several else (value,):
            if each not in facts.choices:
                how = "some of" if several else "one of"
                choices = ", ".join(filter(None, facts.choices))
                raise ValueError(f"{name} {each!r:.80} is unknown: choose {how} {choices}")
    elif facts.rule and not facts.admits(value):
        raise ValueError(f"{name} {value!s:.80} must be {facts.rule}")
