"""Compiled programs are kept in the folder that is named, and taken from there."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy

COMPILE = """
import logging, sys
import jax
from ale_jax.system.compilation import keep_compiled
keep_compiled(sys.argv[1])
logging.basicConfig(level=logging.DEBUG)
jax.jit(lambda x: x * 3 + 1)(2.0)
"""


def _compile(folder):
    settings = dict(os.environ, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
    settings.pop("JAX_COMPILATION_CACHE_DIR")  # the tests' own
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder)],
        env=settings,
        capture_output=True,
        text=True,
        check=True,
    )
    return "Persistent compilation cache hit for 'jit__lambda'" in done.stderr


def test_the_second_process_finds_what_the_first_compiled(tmp_path):
    assert not _compile(tmp_path / "cache")
    assert any((tmp_path / "cache").iterdir())
    assert _compile(tmp_path / "cache")
    assert not _compile("")
