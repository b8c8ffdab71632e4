"""The commands of docs/pods.md that call this repository are understood by what they call."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ale_jax import launch
from tests.launch.commands_on_path import CommandsOnPath

ROOT = Path(__file__).parents[2]
LINES = [line.strip() for line in (ROOT / "docs/pods.md").read_text().splitlines()]
SCRIPTS = [line for line in LINES if re.match(r"launch/(tpu_pod\.py|hosts\.sh) ", line)]


@pytest.mark.parametrize("line", SCRIPTS, ids=lambda line: "-".join(line.split()[:2]))
def test_a_script_understands_the_line(line, tmp_path):
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("gcloud")
    commands.add("ssh")
    script, *arguments = shlex.split(line)
    own = {"launch/hosts.sh": ["--dry-run", *arguments]}.get(script)
    if own is None:  # the option belongs before what is for training
        end = [*arguments, "--"].index("--")
        own = [*arguments[:end], "--dry-run", *arguments[end:]]
    done = subprocess.run([ROOT / script, *own], env=commands.environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert commands.calls() == []


def test_each_script_is_called():
    called = {(line.split()[0], line.split()[1]) for line in SCRIPTS}
    assert called >= {("launch/tpu_pod.py", name) for name in ("train", "stop", "delete")}
    assert "launch/hosts.sh" in {script for script, _ in called}


def test_the_plan_accepts_the_line_of_a_pod_of_sixteen_chips():
    (line,) = [line for line in LINES if "--mode=plan" in line]
    _, _, program, *arguments = shlex.split(line)
    assert launch.main([program, *arguments]) == 0
    (train,) = [line for line in SCRIPTS if line.startswith("launch/tpu_pod.py train")]
    hardware = {"--mode=plan", "--config.hardware.chip=v6e", "--config.hardware.devices=16"}
    hardware.add("--config.hardware.devices_per_process=4")
    assert {*arguments} - hardware <= {*shlex.split(train)}, "another line trains"
