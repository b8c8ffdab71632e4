"""Reads a source tree without running it: its files, its modules, and what each module imports."""

from __future__ import annotations

import ast
import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("ale_jax", "envs", "configs")  # linked as ale_jax.envs and ale_jax.configs
# All that is the project's own, but for the files at the top.
FOLDERS = (
    *PACKAGES,
    ".ci",
    ".github",
    "benchmarks",
    "docs",
    "examples",
    "launch",
    "notebooks",
    "tests",
)


@dataclasses.dataclass(frozen=True)
class Import:
    """name: dotted, of a module or of a thing in one.

    at_load: it happens when the importing module is loaded, not later and not for type checkers.
    """

    name: str
    at_load: bool


@dataclasses.dataclass(frozen=True)
class Module:
    name: str
    path: Path
    syntax: ast.Module
    imports: tuple[Import, ...]


@dataclasses.dataclass(frozen=True)
class SourceTree:
    """texts: by path relative to the root. modules: those of PACKAGES, by dotted name."""

    texts: dict[Path, str]
    modules: dict[str, Module]

    def module_of(self, name: str) -> str | None:
        """The module of this tree that an imported name is, or is in; None for a library's."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name or None

    def libraries_loaded_by(self, name: str) -> dict[str, tuple[str, ...]]:
        """Top names of all libraries that loading a module loads, each with a chain that leads
        there from it. Lazy imports, and what libraries load themselves, are not followed."""
        libraries: dict[str, tuple[str, ...]] = {}
        chains, waiting = {name: (name,)}, [name]
        while waiting:
            module = waiting.pop()
            for imported in (each.name for each in self.modules[module].imports if each.at_load):
                known = self.module_of(imported)
                if known is None:
                    libraries.setdefault(imported.partition(".")[0], chains[module])
                    continue
                for loaded in _with_packages(known):
                    if loaded in self.modules and loaded not in chains:
                        chains[loaded] = (*chains[module], loaded)
                        waiting.append(loaded)
        return libraries


def read_tree(root: Path) -> SourceTree:
    # In a working tree of git's, .git is a file, which names where the repository lies.
    paths = [p for p in root.iterdir() if p.is_file() and p.name != ".git"]
    for folder in FOLDERS:
        paths += [p for p in (root / folder).rglob("*") if p.is_file()]
    texts = {
        path.relative_to(root): path.read_text(errors="replace")
        for path in sorted(paths)
        if "__pycache__" not in path.parts
    }
    modules = [
        _module(path, text)
        for path, text in texts.items()
        if path.suffix == ".py" and path.parts[0] in PACKAGES
    ]
    return SourceTree(texts, {module.name: module for module in modules})


def _module(path: Path, text: str) -> Module:
    parts = path.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    if parts[0] != "ale_jax":
        name = f"ale_jax.{name}"
    package = name if is_package else name.rpartition(".")[0]
    syntax = _parse(text, path)
    return Module(name, path, syntax, tuple(_imports(syntax, package, at_load=True)))


def _parse(text: str, path: Path) -> ast.Module:
    # Where the collector lets another parse in between, CPython before 3.11.8 counts the depth of
    # both together and gives up (gh-106905).
    gc.disable()
    try:
        return ast.parse(text, str(path))
    finally:
        gc.enable()


def _imports(node: ast.AST, package: str, at_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, at_load) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, package)
            yield from (Import(f"{base}.{alias.name}", at_load) for alias in child.names)
        else:
            yield from _imports(child, package, at_load and not _is_put_off(child))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def _is_put_off(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _with_packages(name: str) -> list[str]:
    """a.b.c as a, a.b, a.b.c: loading a module loads its packages."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
