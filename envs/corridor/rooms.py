"""Corridors: rooms in a row, in some of which the door of the light's colour is the right one.

They are the worlds in which credit assignment is studied: which chunks decide an episode is known,
and can be chosen. A family's name holds its settings, so that a task's name still says all of it.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Mapping

import numpy as np

from ale_jax.agent.tools import ToolCall, bash, finish
from ale_jax.envs.shell.words import WORDS

LIGHTS: Mapping[str, str] = {
    "red": "left",
    "blue": "right",
    "white": "ahead",
    "black": "back",
    "gold": "up",
    "pink": "down",
}
PLACES = ("late", "early", "spread", "any", "all")
FAMILIES = ("corridor-late3", "corridor-early3")  # those that lists name; any other is as good
EXAMPLE = "corridor-depth24-doors4-late3-retries-distractors6"
_NAME = re.compile(
    r"corridor(?:-depth(?P<depth>[0-9]{1,3}))?(?:-doors(?P<doors>[0-9]{1,3}))?"
    rf"-(?P<place>{'|'.join(PLACES)})(?P<bottlenecks>[0-9]{{0,3}})"
    r"(?P<retries>-retries)?(?:-distractors(?P<distractors>[0-9]{1,3}))?"
)
DOOR_FILE = "door"
_TAG = zlib.crc32(b"corridor")


@dataclasses.dataclass(frozen=True)
class Corridor:
    """The settings of a family.

    place, bottlenecks: in `bottlenecks` rooms only the door of the light's colour is right; they
        are the last ones ("late"), the first ones ("early"), evenly spread, any (others in each
        task), or all rooms. In the other rooms every door leads on, and the light says nothing.
    depth: rooms, each of which takes one command. doors: of each room.
    retries: False: a wrong door leads on like the right one, and nothing shows before the verdict
        that the episode is lost. True: it stays shut, says so, and has cost a turn.
    distractors: words without meaning beside each light.
    """

    place: str
    bottlenecks: int
    depth: int = 16
    doors: int = 3
    retries: bool = False
    distractors: int = 3

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise ValueError(f"place {self.place!r} is unknown: choose one of {', '.join(PLACES)}")
        _require_between(8, "depth", self.depth, 48)
        _require_between(2, "doors", self.doors, len(LIGHTS))
        _require_between(0, "distractors", self.distractors, 24)
        if self.place == "all":
            if self.bottlenecks != self.depth:
                raise ValueError(
                    f"bottlenecks {self.bottlenecks} must be the depth, {self.depth}, if the "
                    f"place is 'all'"
                )
        elif not 1 <= self.bottlenecks < self.depth:
            raise ValueError(
                f"bottlenecks {self.bottlenecks} must be from 1 to {self.depth - 1}, less than "
                f"the depth: the place 'all' has them in every room"
            )

    @property
    def family(self) -> str:
        """The name, in which settings with default values are left out."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        sizes = {name: getattr(self, name) for name in ("depth", "doors", "distractors")}
        shown = {k: f"-{k}{v}" if v != defaults[k] else "" for k, v in sizes.items()}
        count = "" if self.place == "all" else str(self.bottlenecks)
        retries = "-retries" if self.retries else ""
        head = f"corridor{shown['depth']}{shown['doors']}-{self.place}{count}"
        return f"{head}{retries}{shown['distractors']}"

    def deciding(self, seed: int) -> frozenset[int]:
        """The rooms of a task in which only one door is right, counted from 0."""
        if self.place == "any":
            chosen = _stream(seed, 3).choice(self.depth, self.bottlenecks, replace=False)
            return frozenset(chosen.tolist())
        if self.place == "spread":  # in the middle of equal parts
            middles = np.arange(1, 2 * self.bottlenecks, 2)
            return frozenset((middles * self.depth // (2 * self.bottlenecks)).tolist())
        first = self.depth - self.bottlenecks if self.place == "late" else 0
        return frozenset(range(first, first + self.bottlenecks))


def _stream(seed: int, number: int) -> np.random.Generator:
    """What is drawn from one stream can tell nothing of what is drawn from another."""
    return np.random.default_rng([_TAG, seed, number])


def _require_between(low: int, name: str, value: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} {value} must be from {low} to {high}")


def parse(family: str) -> Corridor:
    """The settings in a family's name, such as EXAMPLE; only the place must be there.

    Raises:
      ValueError: the name or a setting is invalid, or it is another name of the same family.
    """
    found = _NAME.fullmatch(family)
    if found is None or (found["bottlenecks"] == "") != (found["place"] == "all"):
        raise ValueError(
            f"family {family!r} is no corridor: name it as {EXAMPLE}, where all but the place may "
            f"be left out; the place is lateN, earlyN, spreadN, anyN or all"
        )
    sizes = {k: int(found[k]) for k in ("depth", "doors", "distractors") if found[k] is not None}
    count = int(found["bottlenecks"] or sizes.get("depth", Corridor.depth))
    corridor = Corridor(found["place"], count, retries=bool(found["retries"]), **sizes)
    if corridor.family != family:
        raise ValueError(f"family {family!r} must be written {corridor.family!r}: one name each")
    return corridor


@dataclasses.dataclass(frozen=True)
class Rooms:
    """A task. By room: what it shows; the doors that lead on; the door that the oracle takes."""

    corridor: Corridor
    texts: tuple[str, ...]
    right: tuple[frozenset[str], ...]
    taken: tuple[str, ...]

    @property
    def doors(self) -> tuple[str, ...]:
        return tuple(LIGHTS.values())[: self.corridor.doors]

    @property
    def instruction(self) -> str:
        return f"Write {', '.join(self.doors)} into {DOOR_FILE} until the end.\n{self.texts[0]}"


def generate(family: str, seed: int) -> Rooms:
    """The task of `family` and `seed`, the same on every machine. ValueError as in `parse`.

    Lights, words and the oracle's choices have random streams of their own. So the words can tell
    nothing of the lights, and families that differ in their bottlenecks alone have equal rooms.
    """
    corridor = parse(family)
    deciding, depth = corridor.deciding(seed), corridor.depth
    light_rng, word_rng, door_rng = (_stream(seed, number) for number in range(3))
    lights = [tuple(LIGHTS)[i] for i in light_rng.integers(corridor.doors, size=depth)]
    doors = tuple(LIGHTS.values())[: corridor.doors]
    right = [
        frozenset([LIGHTS[light]] if room in deciding else doors)
        for room, light in enumerate(lights)
    ]
    # Where every door leads on, the oracle takes any, so that its demonstrations do not follow the
    # light more often than has to be.
    any_door = [doors[i] for i in door_rng.integers(corridor.doors, size=depth)]
    taken = [LIGHTS[light] if len(to) == 1 else d for light, to, d in zip(lights, right, any_door)]
    texts = []
    for light in lights:
        words = word_rng.choice(WORDS, corridor.distractors, replace=False)
        texts.append(" ".join([*words, f"light: {light}"]))
    return Rooms(corridor, tuple(texts), tuple(right), tuple(taken))


def take(door: str) -> ToolCall:
    return bash(f"echo {door}>{DOOR_FILE}")  # without spaces, each of which is a token


def oracle(family: str, seed: int) -> tuple[ToolCall, ...]:
    return (*map(take, generate(family, seed).taken), finish())


def noisy_oracle(family: str, seed: int) -> tuple[ToolCall, ...]:
    """The same calls, and before one of them a door whose name lacks a letter, twice.

    A door that is taken twice would be two rooms, so that only an error can be repeated.
    """
    doors = generate(family, seed).taken
    at = np.random.default_rng([seed, len(doors)]).integers(len(doors))
    misnamed = doors[at][:-1]
    return (*map(take, (*doors[:at], misnamed, misnamed, *doors[at:])), finish())
