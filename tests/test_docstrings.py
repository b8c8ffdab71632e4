"""What the docstrings of the core say: who does what, and examples that hold.

The core is the mathematics, the data that flows, the learner and the config. Each rule is a
function from a syntax tree to its breaches, and is held against a module that breaks it.
"""

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ale_jax.algo
import ale_jax.config
import ale_jax.data
import ale_jax.learn

PACKAGES = (ale_jax.algo, ale_jax.config, ale_jax.data, ale_jax.learn)
MODULES = sorted(
    [f"{p.__name__}.{m.name}" for p in PACKAGES for m in pkgutil.iter_modules(p.__path__)]
    + ["ale_jax.files", "ale_jax.records"]
)
# A value says what it is, and an overload has the words of what it overloads.
EXEMPT = {"property", "cached_property", "overload"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.Module | ast.ClassDef, owner: str = "") -> Iterator[tuple[str, Definition]]:
    """Yields each public class, function and method with its name, but for what is exempt."""
    for each in node.body:
        if not isinstance(each, Definition) or each.name.startswith("_"):
            continue
        if {ast.unparse(d).rpartition(".")[2] for d in each.decorator_list} & EXEMPT:
            continue
        yield owner + each.name, each
        if isinstance(each, ast.ClassDef):
            yield from public(each, f"{each.name}.")


def without_docstring(module: ast.Module) -> list[str]:
    return [name for name, each in public(module) if not ast.get_docstring(each)]


def without_verb(module: ast.Module) -> list[str]:
    """Names the functions whose docstring begins with no verb in the third person."""
    return [
        f"{name}: {words[0]}"
        for name, each in public(module)
        if not isinstance(each, ast.ClassDef)
        and (words := (ast.get_docstring(each) or "").split())
        and not re.fullmatch("[A-Z][a-z]+s,?", words[0])
    ]


def syntax_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    return ast.parse(Path(spec.origin).read_text())


@pytest.mark.parametrize("module", MODULES)
def test_what_is_public_has_a_docstring(module):
    assert not without_docstring(syntax_of(module))


@pytest.mark.parametrize("module", MODULES)
def test_a_function_says_what_it_does(module):
    assert not without_verb(syntax_of(module))


BREACHES = '''
class Bare:
    """A class."""

    def silent(self): ...

    def fragment(self):
        """Of each critic."""

    def noun(self):
        """The critics."""

    def plain(self):
        """Returns the critics."""

    @property
    def value(self): ...

    def _private(self): ...

class Wordless: ...
'''


def test_rules_find_what_breaks_them():
    module = ast.parse(BREACHES)
    assert without_docstring(module) == ["Bare.silent", "Wordless"]
    assert without_verb(module) == ["Bare.fragment: Of", "Bare.noun: The"]


@pytest.mark.heavy
@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


def test_each_module_of_the_mathematics_has_an_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in MODULES:
        if module.startswith("ale_jax.algo."):
            assert any(each.examples for each in finder.find(importlib.import_module(module)))
