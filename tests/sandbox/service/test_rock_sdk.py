"""ROCK's own package as it is published, in an environment of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.service.conftest import ANN

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("ALE_ROCK_PYTHON", ROOT / ".venv-rock/bin/python"))
PROGRAM = Path(__file__).with_name("rock_program.py")


def test_rocks_own_package_works_unmodified(real):
    if not PYTHON.exists():
        pytest.skip("rl-rock is not installed; type: make rock")
    line = [PYTHON, "-I", PROGRAM, real.url, ANN]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("all is well\n"), done.stderr[-4000:]
