"""The recipes of docs/agents.md, read from the page itself: what the benchmark plays is what a user
copies."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

from ale_jax.config.agent import ExternalAgent

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "agents.md"
# A heading, words, and a block: the line that installs the program, and the lines of a config.
RECIPE = re.compile(r"^### ([^\n]+)\n.*?\n((?:    [^\n]*\n|\n)+)", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """install: the shell's line that puts the program into an image."""

    install: str
    agent: ExternalAgent

    @property
    def package(self) -> str:
        """The first that is installed, without its extras."""
        found = re.search(r"\binstall (?:--\S+ )*'?(@?[\w./-]+)", self.install)
        if not found:
            raise ValueError(f"{self.install!r:.200} installs nothing")
        return found[1]


def recipes() -> dict[str, Recipe]:
    """Returns the page's recipes by their headings."""
    section = PAGE.read_text().partition("\n## Recipes\n")[2].partition("\n## ")[0]
    return {heading: _recipe(block) for heading, block in RECIPE.findall(section + "\n")}


def _recipe(block: str) -> Recipe:
    install, _, config = textwrap.dedent(block).strip().partition("\n")
    external_agent = SimpleNamespace()
    names = {"c": SimpleNamespace(external_agent=external_agent)}
    names |= {"Path": ROOT.joinpath, "json": json}
    exec(config, names)  # the page is ours
    return Recipe(install, ExternalAgent(**vars(external_agent)))
