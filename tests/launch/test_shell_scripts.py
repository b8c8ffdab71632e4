"""The shell scripts of this repository are free of what shellcheck knows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SHELLCHECK = Path(sys.executable).with_name("shellcheck")  # a package of PyPI has it
SCRIPTS = [*ROOT.glob("launch/*.sh"), ROOT / "launch/slurm.sbatch", ROOT / ".ci/run"]
# Readers that leave before their pipe ends: whoever writes to it dies of SIGPIPE now and then, and
# with `pipefail` that fails the line, although what it looks for is there.
LEAVES_EARLY = re.compile(r"(?<!\|)\|&?\s*(?:grep\s+(?:-\w*q|.*\s-\w*q)|head\b|sed\s+\S*q)")


def shellcheck(path: Path) -> str:
    return subprocess.run([SHELLCHECK, path], capture_output=True, text=True).stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    assert shellcheck(script) == ""


@pytest.mark.parametrize(
    "script",
    [*SCRIPTS, ROOT / "envs/shell/image/build.sh", ROOT / "Makefile"],
    ids=lambda path: path.name,
)
def test_no_pipe_is_left_before_its_end(script):
    lines = script.read_text().splitlines()
    assert [line for line in lines if LEAVES_EARLY.search(line.partition("# ")[0])] == []


def test_shellcheck_would_find_something(tmp_path):
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash\nrm $1\n")
    assert "SC2086" in shellcheck(script)
