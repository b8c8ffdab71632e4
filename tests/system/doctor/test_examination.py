"""Examinations as a user starts them, of one process and of two."""

import os
import subprocess
import sys

import pytest

from ale_jax.launch import main
from ale_jax.system.workdir import Workdir
from tests.quick_compile import QUICK_COMPILE
from tests.system.configs import smoke_config
from tests.system.hosts.test_processes import free_address

pytestmark = pytest.mark.heavy

ENDS_S = 240.0  # only against a hang
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILE}


def doctor(config, *options):
    """(exit code, {name of a check: its line}) of the first process."""
    line = [sys.executable, "-m", "ale_jax.launch", "doctor", f"--config={config}"]
    done = subprocess.run(
        [*line, *options], env=ENVIRONMENT, capture_output=True, text=True, timeout=ENDS_S
    )
    assert not done.stderr.startswith("Traceback"), done.stderr
    return done.returncode, findings(done.stdout)


def findings(printed):
    lines = [line for line in printed.splitlines() if line.startswith(("ok ", "warn ", "FAIL "))]
    return {line[6:26].strip(): line for line in lines}


def failures(found):
    return {name for name, line in found.items() if line.startswith("FAIL")}


def test_this_machine_is_ready_for_the_smallest_config(runtime_name, tmp_path):
    options = f"--workdir={tmp_path / 'run'}", f"--config.rollout.runtime={runtime_name}"
    with_ray = "--config.rollout.workers=ray"
    code, found = doctor("configs/smoke.py", *options, with_ray)
    assert (code, failures(found)) == (0, set())
    names = {"versions", "accelerator", "devices", "device memory", "host memory", "sandboxes"}
    names |= {
        "grouped product",
        "open files",
        "workdir",
        "disk",
        "compilation cache",
        "peers",
        "shared memory",
    }
    assert names <= found.keys()
    assert "1 x cpu" in found["devices"] and "one process" in found["peers"]
    assert runtime_name in found["sandboxes"] and "jaxlib" in found["versions"]
    assert list(tmp_path.iterdir()) == []


def test_this_machine_is_no_pod_and_has_no_such_folder(capsys):
    words = ["doctor", "--config=configs/qwen3_30b_a3b_v6e.py", "--workdir=setup.py/run"]
    assert main(["launch", *words]) == 2
    printed = capsys.readouterr().out
    found = findings(printed)
    assert {"devices", "workdir"} <= failures(found)
    assert "8 x cpu, and the config is for 64 x v6e" in found["devices"]
    assert "Not a directory" in found["workdir"] and "not checked" in found["run"]
    assert "sandboxes" in found, "the checks after those that failed"
    assert printed.splitlines()[-1].startswith("not ready: ")


def test_a_run_that_does_not_take_the_config_is_told_before_it_begins(tmp_path, capsys):
    words = ["doctor", "--config=configs/smoke.py", f"--workdir={tmp_path}"]
    with Workdir.claim(tmp_path, smoke_config()):
        (tmp_path / "metrics.jsonl").write_text('{"phase": "rl", "step": 1, "seconds": 1}\n')
    assert main(["launch", *words, "--config.seed=5"]) == 2
    found = findings(capsys.readouterr().out)
    assert failures(found) == {"run"} and "--overwrite" in found["run"]
    assert main(["launch", *words, "--config.seed=5", "--overwrite"]) == 0


@pytest.mark.parametrize("choice", ["--resume", "--overwrite"])
def test_what_becomes_of_a_folder_needs_one(choice, capsys):
    assert main(["launch", "doctor", "--config=configs/smoke.py", choice]) == 2
    assert "name it by --workdir" in capsys.readouterr().err


def test_two_processes_are_ready_together(runtime_name):
    runtime = f"--config.rollout.runtime={runtime_name}"
    code, found = doctor("configs/smoke.py", runtime, "--spawn=2")
    assert (code, failures(found)) == (0, set())
    assert "2 x cpu" in found["devices"] and "3 over 2 devices" in found["all-reduce"]
    assert "all 2 processes have the same" in found["alike"]
    assert "at most 0.0" in found["clocks"] and "all processes came" in found["coordinator"]
    assert "process 1" not in failures(found)
    assert found["1: workdir"].startswith("warn"), "what the other process found"


@pytest.fixture(scope="module")
def unlike():
    """What the first of two processes printed, and the exit codes of both. The second has another
    seed, and a clock that is five seconds ahead."""
    address = free_address()
    line = [sys.executable, "-m", "tests.system.doctor.examined", address]
    processes = [
        subprocess.Popen(
            [*line, *words],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in (("0", "1", "0.0"), ("1", "2", "5.0"))
    ]
    try:
        printed = [process.communicate(timeout=ENDS_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return findings(printed[0]), [process.returncode for process in processes]


def test_processes_that_differ_are_told_apart_and_both_fail(unlike):
    found, codes = unlike
    assert codes == [2, 2]
    assert failures(found) == {"clocks", "alike"}
    assert "process 1 has another config" in found["alike"] and "same line" in found["alike"]
    assert "at most 5.0" in found["clocks"] and "synchronize" in found["clocks"]
    assert found["all-reduce"].startswith("ok")
