"""Config fields by dotted name: how two configs differ, and errors for wrong names and values."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_SHOWN = 5


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested fields: {"rl": {"alpha": 1.0}} becomes {"rl.alpha": 1.0}."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        leaves |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return leaves


def differing_fields(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns the names of the fields whose values differ, or that only one of the two has."""
    absent = object()
    return [n for n in {**stored, **wanted} if stored.get(n, absent) != wanted.get(n, absent)]


def described_changes(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str]
) -> str:
    """Describes how the fields `names` changed; at most MAX_SHOWN of them are listed."""
    shown = [f"{n} {stored.get(n)!r} -> {wanted.get(n)!r}"[:120] for n in names[:MAX_SHOWN]]
    if len(names) > MAX_SHOWN:
        shown.append(f"and {len(names) - MAX_SHOWN} more")
    return "; ".join(shown)


def meant_fields(name: str, known: Iterable[str]) -> list[str]:
    """Returns the `known` fields that may be meant by `name`, which may lack its section.

    They are called `name`, or their dotted name ends in it.
    """
    return [field for field in known if f".{field}".endswith(f".{name}")]


def wrong_value(name: str, given: str, current: Any) -> ValueError:
    """Returns the error for an override of the field `name` by a text of another type.

    current: the field's current value, which the message gives as an example.
    """
    example = str(current).lower() if isinstance(current, bool) else str(current)
    return ValueError(
        f"config.{name} is {given!r}: expected {type(current).__name__}, "
        f"e.g. --config.{name}={shlex.quote(example)}"
    )


def unknown_field(name: str, known: Iterable[str]) -> ValueError:
    """Returns the error for a field that does not exist.

    It suggests the `known` field of the same section with the most similar name, or whose words
    have these initials, or lists all of the section.
    """
    known = list(known)
    if fields := [k for k in known if k.startswith(f"{name}.")]:
        return ValueError(f"config.{name} is a section: choose one of {', '.join(fields)}")
    section, _, last = name.rpartition(".")
    own = [k for k in known if k.rpartition(".")[0] == section]
    # Of two short names every letter counts: "lr" is near to "b2" when their section counts, too.
    ends = {k.rpartition(".")[2]: k for k in own}
    meant = [end for end in ends if "".join(word[0] for word in end.split("_")) == last]
    meant = meant or difflib.get_close_matches(last, ends, n=1, cutoff=0.7)
    near = [ends[end] for end in meant[:1]]
    if not own:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if near:
        return ValueError(f"config.{name} is unknown: did you mean config.{near[0]}?")
    siblings = own or sorted({k.partition(".")[0] for k in known})
    return ValueError(f"config.{name} is unknown: choose one of {', '.join(siblings)}")
