"""The environments of the libraries that are bridged to, for tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def python_of(name: str) -> str:
    """The interpreter that `make NAME` installs; a test without it is skipped."""
    installed = ROOT / f".venv-{name}/bin/python"
    path = Path(os.environ.get(f"ALE_{name.upper()}_PYTHON", installed))
    if not path.exists():
        pytest.skip(f"{name}'s libraries are not installed; type: make {name}")
    return str(path)
