"""The fields of a table, each of which is read by name, so that none is overlooked."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Collection, Sequence
from typing import Any

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Values of YAML may refer to each other, and be without end when they are written out.
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = 80
TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


class Fields:
    """A table. path: how errors name it; "" for the file itself.

    All methods that read raise ValueError, with the field's name, for a value of another kind. A
    field that is left out has its default.
    """

    def __init__(self, values: Any, path: str = ""):
        if not isinstance(values, dict):
            raise ValueError(f"{path or 'the file'} {SHOWN.repr(values)} must be a table")
        self._values, self._path, self._read = values, path, set[str]()

    def name(self, field: str) -> str:
        """Returns a field's name from the top of the file."""
        return f"{self._path}.{field}" if self._path else field

    def has(self, field: str) -> bool:
        return self._values.get(field) is not None

    def wrong(self, field: str, why: str) -> ValueError:
        """Returns the refusal of a field."""
        return ValueError(f"{self.name(field)} {SHOWN.repr(self._values.get(field))} {why}")

    def skip(self, *fields: str) -> None:
        """Notes fields that do not change how a task is played."""
        self._read.update(fields)

    def refuse(self, field: str, why: str, but: Sequence[Any] = ()) -> None:
        """Refuses a field whose value is neither empty nor one of `but`."""
        value = self.raw(field)
        if value not in (None, [], {}, *but):
            raise self.wrong(field, why)

    def close(self) -> None:
        """Refuses fields that nobody has read."""
        for field in self._values:
            if field not in self._read:
                near = difflib.get_close_matches(str(field), self._read, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{self.name(str(field))} is an unknown field{hint}")

    def raw(self, field: str) -> Any:
        """Returns whatever is there; None if nothing is."""
        self._read.add(field)
        return self._values.get(field)

    def text(self, field: str, default: str = "") -> str:
        value = self.raw(field)
        if value is not None and not isinstance(value, str):
            raise self.wrong(field, "must be text")
        return default if value is None else value

    def choice(self, field: str, choices: Collection[str], default: str = "") -> str:
        value = self.text(field, default)
        if value not in (default, *choices):
            raise self.wrong(field, f"must be one of {', '.join(choices)}")
        return value

    def seconds(self, field: str, default: float) -> float:
        """Returns a time, which must be above 0 and finite."""
        value = self.number(field, default)
        if not value > 0.0:
            raise self.wrong(field, "must be a number of seconds, above 0")
        return value

    def number(self, field: str, default: float = 0.0) -> float:
        """Returns a number that is not negative."""
        value = self.raw(field)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.wrong(field, "must be a number, and not below 0")
        return float(value)

    def whole(self, field: str, default: int = 0) -> int:
        value = self.number(field, default)
        if value != int(value):
            raise self.wrong(field, "must be a whole number")
        return int(value)

    def texts(self, field: str) -> tuple[str, ...]:
        value = self.raw(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(field, "must be a list of texts")
        return tuple(value)

    def variables(self, field: str) -> dict[str, str]:
        """Returns environment variables. `${NAME:-default}` is its default: a task may not read the
        variables of this machine, which hold its secrets."""
        given = self.raw(field)
        if given is not None and not isinstance(given, dict):
            raise self.wrong(field, "must be a table of variables")
        found: dict[str, str] = {}
        for name, value in (given or {}).items():
            where = f"{self.name(field)}.{name}"
            if not VARIABLE.fullmatch(name) or not isinstance(value, str) or "\0" in value:
                raise ValueError(f"{where} {value!r:.80} must be a variable whose value is text")
            template = TEMPLATE.fullmatch(value)
            if template and template[2] is None:
                raise ValueError(
                    f"{where} {value!r:.80} reads a variable of this machine, which no task may: "
                    "write its value, or a default as in ${NAME:-default}"
                )
            found[name] = template[2] if template else value
        return found

    def thresholds(self, field: str) -> dict[str, float]:
        """Returns numbers by name; a number alone is called "reward"."""
        value = self.raw(field)
        named = value if isinstance(value, dict) else {} if value is None else {"reward": value}
        for each in named.values():
            if type(each) not in (int, float) or math.isnan(each):
                raise self.wrong(field, "must be a number, or numbers by name")
        return {name: float(each) for name, each in named.items()}

    def table(self, field: str) -> Fields:
        value = self.raw(field)
        return Fields({} if value is None else value, self.name(field))

    def tables(self, field: str) -> list[Fields]:
        """Returns the tables of a list. A text in it stands for a table with that `source`."""
        value = self.raw(field)
        if value is not None and not isinstance(value, list):
            raise self.wrong(field, "must be a list")
        items = [{"source": each} if isinstance(each, str) else each for each in value or ()]
        return [Fields(each, f"{self.name(field)}[{n}]") for n, each in enumerate(items)]
