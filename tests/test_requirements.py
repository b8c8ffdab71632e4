"""What is installed: versions that the CI has run, which setup.py allows."""

import re
import runpy
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()


@pytest.fixture
def required(monkeypatch):
    """The requirements of the package and of its tests."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **fields: given.update(fields))
    runpy.run_path(str(ROOT / "setup.py"))
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


def test_each_requirement_has_a_lower_bound(required):
    for each in required:
        is_stub = each.name.startswith("types-")
        assert is_stub or {s.operator for s in each.specifier} & {">=", "=="}, each
