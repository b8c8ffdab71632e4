"""The Makefile hands on what it is given."""

import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]


def dry_run(*arguments):
    # Below another make, as in `make test`, the folder is announced in lines around the recipe.
    dry = ["make", "--no-print-directory", "--dry-run", *arguments]
    return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("target", "before"), [("quickstart", "--workdir="), ("report", "")])
def test_the_folder_of_a_run_may_have_a_space(target, before):
    printed = dry_run(target, "RUN=runs/my run")
    assert shlex.split(printed.splitlines()[-1])[-1] == f"{before}runs/my run"


@pytest.mark.parametrize("target", ["install", "install-test", "install-cluster"])
def test_the_locked_versions_are_installed_unless_the_newest_are_asked_for(target):
    every = ("--always-make", "VENV=nowhere")
    assert "pip install --disable-pip-version-check  --constraint requirements.lock" in dry_run(
        target, *every
    )
    newest = dry_run(target, *every, "LOCK=")
    assert "pip install" in newest and "--constraint" not in newest
