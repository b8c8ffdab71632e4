"""The shell scripts of this repository are free of what shellcheck knows."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLCHECK = Path(sys.executable).with_name("shellcheck")  # a package of PyPI has it
SCRIPTS = [*ROOT.glob("launch/*.sh"), ROOT / "launch/slurm.sbatch", ROOT / ".ci/run"]


def shellcheck(path: Path) -> str:
    return subprocess.run([SHELLCHECK, path], capture_output=True, text=True).stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    assert shellcheck(script) == ""


def test_shellcheck_would_find_something(tmp_path):
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash\nrm $1\n")
    assert "SC2086" in shellcheck(script)
