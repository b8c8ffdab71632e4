"""Each package explains the letters of its shape suffixes in one legend, which is complete.

A suffixed name has a lower-case stem and, after its last underscore, the axes of an array, one
letter each: `logp_BT`, `k_GPbH`. A digit is an axis of that size, as in `key_S2`. The legend is in
the docstring of the package's `__init__.py`, or of the module if it belongs to no package.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = (
    "ale_jax/algo",
    "ale_jax/data",
    "ale_jax/learn",
    "ale_jax/model",
    "ale_jax/engine",
    "ale_jax/gateway",
    "ale_jax/system",
    "ale_jax/records.py",
)

# One axis must be a capital: `last_t` could be any name of two words.
SUFFIXED = re.compile(r"_?[a-z][a-z0-9]*(?:_[a-z0-9]+)*_(?P<axes>[a-z0-9]*[A-Z][A-Za-z0-9]*)")
ENTRY = re.compile(r"^    (?P<letter>[A-Za-z])  (?P<meaning>\S.*)$", re.MULTILINE)
TITLE = "Shape suffixes"


def legend(docstring: str) -> list[tuple[str, str]]:
    """(letter, meaning) of each line that defines one, behind the legend's title."""
    _, _, lines = docstring.partition(TITLE)
    return ENTRY.findall(lines)


def suffixed_names(syntax: ast.AST) -> Iterator[str]:
    """Of variables, arguments, attributes, fields and functions, and of arrays in dictionaries."""
    for node in ast.walk(syntax):
        for field in ("id", "arg", "attr", "name", "asname", "value"):
            name = getattr(node, field, None)
            if isinstance(name, str) and SUFFIXED.fullmatch(name):
                yield name


def letters(name: str) -> set[str]:
    axes = SUFFIXED.fullmatch(name)["axes"]
    return {letter for letter in axes if letter.isalpha()}


def breaches(docstring: str, sources: dict[str, str]) -> list[str]:
    """What is wrong with a package or a module of this docstring and these files."""
    defined = legend(docstring)
    used: dict[str, set[str]] = defaultdict(set)
    for file, text in sources.items():
        for name in suffixed_names(ast.parse(text)):
            for letter in letters(name):
                used[letter].add(f"{file}: {name}")
    counts = Counter(letter for letter, _ in defined)
    return [
        *(
            f"{letter} is not in the legend ({min(used[letter])})"
            for letter in used.keys() - counts
        ),
        *(f"{letter} is in the legend, but no name has it" for letter in counts.keys() - used),
        *(f"{letter} is defined {count} times" for letter, count in counts.items() if count > 1),
    ]


def _read(place: str) -> tuple[str, dict[str, str]]:
    """The docstring with the legend of a package or a module, and its files."""
    paths = [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")
    files = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    home = place if place in files else f"{place}/__init__.py"
    return ast.get_docstring(ast.parse(files[home]), clean=False) or "", files


@pytest.mark.parametrize("place", PLACES)
def test_each_letter_is_in_the_legend_of_its_package_once(place):
    docstring, sources = _read(place)
    assert legend(docstring), f"{place} has no legend"
    assert breaches(docstring, sources) == []


LEGEND = """A package.

Shape suffixes:
    B  rows
    T  tokens
"""


@pytest.mark.parametrize(
    ("docstring", "source", "found"),
    [
        (LEGEND, "x_BT = 1", []),
        (LEGEND, "MAX_T = TIME_S = Some_X = 1; x_BT", []),
        (LEGEND, "def f(x_BTD): ...; y_BT", ["D is not in the legend (a.py: x_BTD)"]),
        (LEGEND, "class A:\n    x_BT: int\n    y_BtH: int", ["H is", "t is"]),
        (LEGEND, "a.x_BT; b['w_D']", ["D is not in the legend (a.py: w_D)"]),
        (LEGEND, "x_B1", ["T is in the legend, but no name has it"]),
        (LEGEND + "    T  turns\n", "x_BT", ["T is defined 2 times"]),
        ("A package.", "x_B", ["B is not in the legend"]),
    ],
)
def test_a_faulty_package_is_found(docstring, source, found):
    result = sorted(breaches(docstring, {"a.py": source}))
    assert len(result) == len(found), result
    assert all(one.startswith(begin) for one, begin in zip(result, sorted(found)))
