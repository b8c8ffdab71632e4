"""The letters of shape suffixes stand in one legend, each once, which is complete.

A suffixed name has a lower-case stem and, after its last underscore, the axes of an array, one
letter each: `logp_BT`, `k_GPbH`. A digit is an axis of that size, as in `key_S2`. The legend is the
docstring of `ale_jax/records.py`, to which each package refers.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEGEND = "ale_jax/records.py"
PACKAGES = ("algo", "data", "engine", "evaluation", "gateway", "learn", "model", "system")

# One axis must be a capital: `last_t` could be any name of two words.
SUFFIXED = re.compile(r"_?[a-z][a-z0-9]*(?:_[a-z0-9]+)*_(?P<axes>[a-z0-9]*[A-Z][A-Za-z0-9]*)")
ENTRY = re.compile(r"^    (?P<letter>[A-Za-z])  (?P<meaning>\S.*)$", re.MULTILINE)
TITLE = "Shape suffixes"
OTHERS = {"do_GET", "do_POST"}  # the names of http.server's methods


def legend(docstring: str) -> list[str]:
    """The letters that the lines behind the legend's title define."""
    _, _, lines = docstring.partition(TITLE)
    return [letter for letter, _ in ENTRY.findall(lines)]


def suffixed_names(syntax: ast.AST) -> Iterator[str]:
    """Of variables, arguments, attributes, fields and functions, and of arrays in dictionaries."""
    for node in ast.walk(syntax):
        for field in ("id", "arg", "attr", "name", "asname", "value"):
            name = getattr(node, field, None)
            if isinstance(name, str) and SUFFIXED.fullmatch(name) and name not in OTHERS:
                yield name


def letters(name: str) -> set[str]:
    axes = SUFFIXED.fullmatch(name)["axes"]
    return {letter for letter in axes if letter.isalpha()}


def breaches(docstring: str, sources: dict[str, str]) -> list[str]:
    """What is wrong with a legend in this docstring, or with names in these files."""
    counts = Counter(legend(docstring))
    used: dict[str, set[str]] = defaultdict(set)
    for file, text in sources.items():
        for name in suffixed_names(ast.parse(text)):
            for letter in letters(name):
                used[letter].add(f"{file}: {name}")
    return [
        *(
            f"{letter} is not in the legend ({min(used[letter])})"
            for letter in used.keys() - counts
        ),
        *(f"{letter} is in the legend, but no name has it" for letter in counts.keys() - used),
        *(f"{letter} is defined {count} times" for letter, count in counts.items() if count > 1),
    ]


def docstring_of(path: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / path).read_text()), clean=False) or ""


def test_each_letter_is_in_the_legend_once():
    paths = [*(ROOT / "ale_jax").rglob("*.py"), *(ROOT / "envs").rglob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert len(legend(docstring_of(LEGEND))) > 20 and len(sources) > 100
    assert breaches(docstring_of(LEGEND), sources) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_refers_to_the_legend_and_has_none_of_its_own(package):
    docstring = docstring_of(f"ale_jax/{package}/__init__.py")
    assert "`ale_jax.records`" in docstring and legend(docstring) == []


TWO_LETTERS = """Records.

Shape suffixes:
    B  rows
    T  tokens
"""


@pytest.mark.parametrize(
    ("docstring", "source", "found"),
    [
        (TWO_LETTERS, "x_BT = 1", []),
        (TWO_LETTERS, "MAX_T = TIME_S = Some_X = 1; x_BT", []),
        (TWO_LETTERS, "def f(x_BTD): ...; y_BT", ["D is not in the legend (a.py: x_BTD)"]),
        (TWO_LETTERS, "class A:\n    x_BT: int\n    y_BtH: int", ["H is", "t is"]),
        (TWO_LETTERS, "a.x_BT; b['w_D']", ["D is not in the legend (a.py: w_D)"]),
        (TWO_LETTERS, "x_B1", ["T is in the legend, but no name has it"]),
        (TWO_LETTERS + "    T  turns\n", "x_BT", ["T is defined 2 times"]),
        ("Records.", "x_B", ["B is not in the legend"]),
    ],
)
def test_a_fault_is_found(docstring, source, found):
    result = sorted(breaches(docstring, {"a.py": source}))
    assert len(result) == len(found), result
    assert all(one.startswith(begin) for one, begin in zip(result, sorted(found)))
