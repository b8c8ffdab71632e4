"""The Makefile hands on what it is given."""

import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("target", "before"), [("quickstart", "--workdir="), ("report", "")])
def test_the_folder_of_a_run_may_have_a_space(target, before):
    # Below another make, as in `make test`, the folder is announced in lines around the recipe.
    dry = ["make", "--no-print-directory", "--dry-run", target, "RUN=runs/my run"]
    printed = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shlex.split(printed.splitlines()[-1])[-1] == f"{before}runs/my run"
