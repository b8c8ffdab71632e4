"""Prints every field of a run's config, in Markdown: python -m ale_jax.configs.document

A field's meaning is its entry in the docstring of its dataclass. Its allowed values are taken from
the error that the code raises for a value that can never be valid.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from ale_jax.configs.defaults import get_defaults
from ale_jax.system.build_config import build_config
from ale_jax.system.config import RunConfig
from ale_jax.system.fields import flat

HEAD = """# Config fields

Every field of a run with its default, as the code has it. On the command line a field is set by
`--config.PATH=VALUE`, for example `--config.rl.alpha=0.5`, and a tuple by
`--config.engine.prefill_tokens="(32, 128)"`. A config file starts from these defaults
(`configs/defaults.py`) and changes some of them.
"""
ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
# Values by type that are invalid for every field with a rule; bools and paths have no rules.
WRONG = {"int": -2, "float": -1e9, "str": "?", "tuple[str, ...]": ("?",)}
RULES = (
    re.compile(r"'\?'.*[:;] (?:choose|write) (?:one of |some of )?(.*)"),
    re.compile(r" must be (.*)"),
)


@dataclasses.dataclass(frozen=True)
class Section:
    """A dataclass of the config. path: ends with a dot; empty for the run itself."""

    path: str
    record: type

    @property
    def kinds(self) -> dict[str, Any]:
        return typing.get_type_hints(self.record)

    def leaves(self) -> Iterator[str]:
        return (name for name, kind in self.kinds.items() if not dataclasses.is_dataclass(kind))

    def sections(self) -> Iterator[Section]:
        """This section and all sections below it, in the order of their fields."""
        yield self
        for name, kind in self.kinds.items():
            if dataclasses.is_dataclass(kind):
                yield from Section(f"{self.path}{name}.", kind).sections()

    def meanings(self) -> tuple[str, dict[str, str]]:
        """The docstring's text about the whole section, and about each field."""
        whole, entries, names = [], {}, [""]
        for line in inspect.getdoc(self.record).splitlines():
            entry = ENTRY.fullmatch(line)
            if entry and set(found := entry[1].split(", ")) <= self.kinds.keys():
                names, line = found, entry[2]
                entries |= {name: [] for name in names}
            if not line:  # a paragraph about the whole section may follow
                names = [""]
            for name in names:
                entries.get(name, whole).append(line.strip())
        return " ".join(whole).strip(), {n: " ".join(e).strip() for n, e in entries.items()}


def page() -> str:
    parts = [HEAD]
    defaults = flat(get_defaults().to_dict())
    for section in Section("", RunConfig).sections():
        whole, meanings = section.meanings()
        rows = [_row(section, name, meanings.get(name, ""), defaults) for name in section.leaves()]
        head = ["| Field | Type | Default | Meaning | Allowed |", "|---|---|---|---|---|"]
        title = f"## {section.path.rstrip('.') or 'The run'}"
        parts.append("\n".join([title, "", whole, "", *head, *rows, ""]))
    return "\n".join(parts)


def _row(section: Section, name: str, meaning: str, defaults: dict[str, Any]) -> str:
    path = section.path + name
    kind = inspect.get_annotations(section.record)[name]
    cells = (f"`{path}`", f"`{kind}`", f"`{defaults[path]!r}`", meaning, allowed(path, kind))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def allowed(path: str, kind: str) -> str:
    """The rule for the field at `path`, from the code's error; empty if there is no rule."""
    if kind not in WRONG:
        return ""
    values = get_defaults()
    values.update_from_flattened_dict({path: WRONG[kind]})
    try:
        build_config(values.to_dict())
    except ValueError as refusal:
        found = (rule.search(str(refusal)) for rule in RULES)
        return next((each[1] for each in found if each), "")
    return ""


if __name__ == "__main__":
    print(page(), end="")
