"""What is installed: versions that the CI has run, which setup.py allows."""

import re
import runpy
import sys
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()


def _given(monkeypatch, path):
    """What a setup.py gives to setuptools, which is not loaded: it wants to come before all that
    uses distutils."""
    given = {}
    stands_in = types.SimpleNamespace(
        setup=lambda **fields: given.update(fields),
        find_namespace_packages=lambda *where, include: [],
    )
    monkeypatch.setitem(sys.modules, "setuptools", stands_in)
    monkeypatch.chdir((ROOT / path).parent)
    runpy.run_path(str(ROOT / path))
    return given


@pytest.fixture
def required(monkeypatch):
    """The requirements of the package and of its tests."""
    given = _given(monkeypatch, "setup.py")
    return [
        Requirement(each) for each in [*given["install_requires"], *given["extras_require"]["test"]]
    ]


def test_the_lock_has_versions_and_nothing_of_a_machine():
    """No folders, no indexes, and no builds that only one of them has."""
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in LOCK)
    assert not {"pip", "setuptools", "ale-jax"} & {line.partition("==")[0] for line in LOCK}


def test_each_requirement_is_locked_to_a_version_that_it_allows(required):
    locked = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LOCK}
    for each in required:
        assert each.specifier.contains(locked[canonicalize_name(each.name)]), each


def test_the_client_requires_a_part_of_that(monkeypatch):
    whole, client = (_given(monkeypatch, path) for path in ("setup.py", "client/setup.py"))
    assert {*client["install_requires"]} < {*whole["install_requires"]}
    assert client["version"] == whole["version"]


def test_each_requirement_has_a_lower_bound(required):
    for each in required:
        is_stub = each.name.startswith("types-")
        assert is_stub or {s.operator for s in each.specifier} & {">=", "=="}, each
