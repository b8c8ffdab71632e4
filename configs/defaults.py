"""The defaults of `RunConfig` and of the dataclasses in it, as a ConfigDict.

They are read from the source without importing it. The modules of the dataclasses import JAX, which
takes time, and a typing error on the command line should be reported before that.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

HOME = ("ale_jax.system.config", "RunConfig")


def get_defaults() -> ConfigDict:
    """Every field of a run with its default, which config files may change."""
    return ConfigDict(_defaults_of(*HOME))


def _defaults_of(module: str, name: str) -> dict[str, Any]:
    """The fields of the dataclass `name` of `module`. A field whose type is a class is a section,
    and has the defaults of that class."""
    statements = _read(module).body
    classes = {s.name: s for s in statements if isinstance(s, ast.ClassDef)}
    homes = dict.fromkeys(classes, module)
    for statement in (s for s in statements if isinstance(s, ast.ImportFrom)):
        homes |= {alias.name: statement.module for alias in statement.names}
    if name not in classes:  # this module imports it as well
        return _defaults_of(homes[name], name)
    defaults = {}
    for field in (s for s in classes[name].body if isinstance(s, ast.AnnAssign)):
        kind = ast.unparse(field.annotation)
        section = _defaults_of(homes[kind], kind) if kind in homes else None
        defaults[field.target.id] = section or ast.literal_eval(field.value)
    return defaults


@functools.cache
def _read(module: str) -> ast.Module:
    return ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
