"""launch/slurm.sbatch, with stand-ins for Slurm's commands."""

import subprocess
from pathlib import Path

import pytest

from tests.launch.commands_on_path import CommandsOnPath

pytestmark = pytest.mark.heavy

SCRIPT = Path(__file__).parents[2] / "launch/slurm.sbatch"
SRUN = """
(here / "devices").write_text(os.environ.get("JAX_LOCAL_DEVICE_IDS", "all"))
sys.exit(int(os.environ["ENDS_WITH"]))
"""


@pytest.fixture
def job(tmp_path):
    """Runs the script as a job whose processes end with `code`: its exit code and calls."""
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("srun", SRUN)
    commands.add("scontrol")

    def call(code, **variables):
        own = {"SLURM_JOB_ID": "7", "ENDS_WITH": str(code), **variables}
        line = ["bash", SCRIPT, "--config=configs/smoke.py", "two words"]
        ended = subprocess.run(line, env=commands.environment | own)
        return ended.returncode, commands.calls()

    call.folder = commands.folder
    return call


def test_every_task_runs_the_line(job):
    code, calls = job(0)
    assert code == 0
    ((srun, *words),) = calls
    assert srun == "srun" and "--kill-on-bad-exit=0" in words
    line = ["-m", "ale_jax.launch", "--config=configs/smoke.py", "two words"]
    assert words[words.index(".venv/bin/python") + 1 :] == line


@pytest.mark.parametrize(
    ("gpus", "devices"), [({"SLURM_GPUS_ON_NODE": "4"}, "0,1,2,3"), ({}, "all")]
)
def test_a_task_gets_all_gpus_of_its_node(job, gpus, devices):
    job(0, **gpus)
    assert (job.folder / "devices").read_text() == devices


def test_a_job_that_was_stopped_is_queued_again_but_not_for_ever(job):
    code, calls = job(130, SLURM_RESTART_COUNT="49")
    assert code == 130 and calls[1:] == [["scontrol", "requeue", "7"]]
    assert len(job(130, SLURM_RESTART_COUNT="50")[1]) == len(calls) + 1


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_is_not_repeated(job, code):
    assert job(code)[0] == code
    assert [call[0] for call in job(code)[1]] == ["srun", "srun"]


def test_processes_are_told_before_the_time_limit_and_the_job_may_be_queued_again():
    options = [line.split()[1] for line in SCRIPT.read_text().splitlines() if "#SBATCH" in line]
    assert {"--signal=TERM@180", "--requeue", "--ntasks-per-node=1"} <= set(options)
