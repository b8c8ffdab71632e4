"""The allocator that programs start with; it is installed by `make test`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax.system import allocator

heavy = pytest.mark.heavy  # what starts a process
TELL = """
import os, sys
from ale_jax.system import allocator
allocator.ACCELERATORS = ()
sys.stderr.write("begins ")
allocator.use_tcmalloc()
print(sys.argv[1:], allocator.is_in_use(), os.environ.get("LD_PRELOAD"))
"""


@pytest.fixture
def installed():
    if not allocator.is_installed():
        pytest.skip("tcmalloc is not installed; type: make allocator")


def _told(**environment) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", allocator.CHOICE)}
    command = [sys.executable, "-c", TELL, "--an=argument"]
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True)


@heavy
def test_a_program_starts_again_with_tcmalloc_and_its_children_do_not(installed):
    program = _told()
    assert program.stdout == "['--an=argument'] True None\n"
    assert program.stderr == "begins begins "


@heavy
def test_what_the_user_preloads_stays(installed):
    program = _told(LD_PRELOAD="libm.so.6")
    assert program.stdout == "['--an=argument'] True libm.so.6\n"


@heavy
def test_the_user_may_keep_the_systems_allocator():
    program = _told(ALE_ALLOCATOR="system")
    assert program.stdout == "['--an=argument'] False None\n"
    assert program.stderr == "begins "


@heavy
def test_a_user_who_preloads_tcmalloc_is_left_alone(installed):
    maps = Path("/proc/self/maps").read_text().split()
    path = next(word for word in maps if "/libtcmalloc" in word)
    program = _told(LD_PRELOAD=path)
    assert program.stdout == f"['--an=argument'] True {path}\n"
    assert program.stderr == "begins "


def test_without_the_library_the_program_goes_on(monkeypatch):
    monkeypatch.setattr(allocator, "LIBRARY", "libtcmalloc_that_nobody_has.so")
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started again"))
    allocator.use_tcmalloc()


@heavy
def test_an_unknown_allocator_is_refused_in_one_line():
    command = [sys.executable, "-m", "ale_jax.launch", "--help"]
    program = subprocess.run(
        command, env=os.environ | {"ALE_ALLOCATOR": "jemalloc"}, capture_output=True, text=True
    )
    assert program.returncode == 2
    assert program.stderr == "error: ALE_ALLOCATOR=jemalloc is not known: set tcmalloc or system\n"
