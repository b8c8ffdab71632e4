"""Prints every field of a run's config, in Markdown: python -m ale_jax.configs.document"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from ale_jax.config.run import RunConfig
from ale_jax.config.setting import Facts, facts_of

HEAD = """# Config fields

Every field of a run with its default, as `ale_jax/config/` declares it. On the command line a field
is set by `--config.PATH=VALUE`, for example `--config.rl.alpha=0.5`, and a tuple by
`--config.engine.prefill_tokens="(32, 128)"`. A config file starts from these defaults and changes
some of them.
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """Settings with their defaults. path: ends with a dot; empty for the run itself."""

    path: str
    settings: Any

    def sections(self) -> Iterator[Section]:
        """Yields this section and all sections below it, in the order of their fields."""
        yield self
        for field in dataclasses.fields(self.settings):
            value = getattr(self.settings, field.name)
            if dataclasses.is_dataclass(value):
                yield from Section(f"{self.path}{field.name}.", value).sections()

    def leaves(self) -> Iterator[tuple[dataclasses.Field[Any], Facts]]:
        """Yields the fields that are no sections."""
        for field in dataclasses.fields(self.settings):
            if facts := facts_of(field):
                yield field, facts

    def text(self) -> str:
        title = f"## {self.path.rstrip('.') or 'The run'}"
        meaning = " ".join(inspect.getdoc(self.settings).split("\n"))
        head = ["| Field | Type | Default | Meaning | Allowed |", "|---|---|---|---|---|"]
        return "\n".join([title, "", meaning, "", *head, *self._rows(), ""])

    def _rows(self) -> Iterator[str]:
        for field, facts in self.leaves():
            default = getattr(self.settings, field.name)
            allowed = ", ".join(facts.choices) or facts.rule
            cells = [f"`{self.path}{field.name}`", f"`{field.type}`", f"`{default!r}`"]
            cells += [facts.meaning, allowed]
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page() -> str:
    return "\n".join([HEAD, *(section.text() for section in Section("", RunConfig()).sections())])


if __name__ == "__main__":
    print(page(), end="")
