"""Libraries that only some commands need, and the base install does not have."""

from __future__ import annotations

import importlib
import shlex
import sys
from types import ModuleType


def load(module: str) -> ModuleType:
    """Imports an optional module. ValueError that names the remedy if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{module.partition('.')[0]} is not installed; in a clone of ALE-JAX, run"
            f" {shlex.quote(sys.executable)} -m pip install '.[agent]'"
        ) from error
