"""The commands of docs/pods.md that call this repository are understood by what they call."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax import launch
from tests.launch.commands_on_path import CommandsOnPath

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LINES = [line.strip() for line in (ROOT / "docs/pods.md").read_text().splitlines()]
SCRIPTS = [line for line in LINES if re.match(r"launch/(tpu_pod\.py|hosts\.sh) ", line)]
ON_RAY = [line for line in LINES if "/ray_slices.py " in line]


def dry(arguments):
    """With the option where it belongs: before what is for training."""
    end = [*arguments, "--"].index("--")
    return [*arguments[:end], "--dry-run", *arguments[end:]]


@pytest.mark.parametrize("line", SCRIPTS, ids=lambda line: "-".join(line.split()[:2]))
def test_a_script_understands_the_line(line, tmp_path):
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("gcloud")
    commands.add("ssh")
    script, *arguments = shlex.split(line)
    own = {"launch/hosts.sh": ["--dry-run", *arguments]}.get(script) or dry(arguments)
    done = subprocess.run([ROOT / script, *own], env=commands.environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert commands.calls() == []


@pytest.mark.parametrize("line", ON_RAY, ids=lambda line: line.split()[0])
def test_the_program_for_ray_understands_the_line(line):
    words = shlex.split(line)
    (at,) = [at for at, word in enumerate(words) if word.endswith("/ray_slices.py")]
    assert words[at] in ("launch/ray_slices.py", "/opt/ale-jax/launch/ray_slices.py")
    program = [sys.executable, ROOT / "launch/ray_slices.py", *dry(words[at + 1 :])]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("\n") == 4, done.stderr


def test_the_plan_accepts_what_trains_on_ray():
    for line in ON_RAY:
        _, _, arguments = line.rpartition(" -- ")
        hardware = ["--config.hardware.chip=v6e", "--config.hardware.devices=16"]
        assert launch.main(["", "plan", *hardware, *shlex.split(arguments)]) == 0


def test_each_script_is_called():
    called = {(line.split()[0], line.split()[1]) for line in SCRIPTS}
    assert called >= {("launch/tpu_pod.py", name) for name in ("train", "stop", "delete")}
    assert "launch/hosts.sh" in {script for script, _ in called}
    assert len(ON_RAY) == 2


def test_the_plan_accepts_the_line_of_a_pod_of_sixteen_chips():
    (line,) = [line for line in LINES if " plan --" in line]
    _, _, program, *arguments = shlex.split(line)
    assert launch.main([program, *arguments]) == 0
    (train,) = [line for line in SCRIPTS if line.startswith("launch/tpu_pod.py train")]
    hardware = {"plan", "--config.hardware.chip=v6e", "--config.hardware.devices=16"}
    hardware.add("--config.hardware.devices_per_process=4")
    assert {*arguments} - hardware <= {*shlex.split(train)}, "another line trains"
