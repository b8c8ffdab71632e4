"""launch/hosts.sh: over an ssh that runs everything on this machine."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.commands_on_path import CommandsOnPath
from tests.quick_compile import QUICK_COMPILE
from tests.system.whole_runs import interrupt

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch/hosts.sh"
NASTY = """--config.name=it's "one" $(touch stolen) `x`; & \\ \t*\n"""
# As sshd, it gives the last argument to the user's shell, which ends with the connection's input.
SSH = 'os.execvp("sh", ["sh", "-c", arguments[-1]])'
DEADLINE_S = 100.0  # only against a hang
# A process of training that does as it is told by the config that it is given: its exit code, or
# "waits", which is 130 after SIGTERM; one that is told "follows" ends when process 0 has ended.
TRAINING = """
import signal, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
told, number = arguments[2].partition("=")[2].split(","), int(arguments[-1].rpartition("=")[2])
print("process", number, flush=True)
(here / f"pid.{number}").write_text(str(os.getpid()))
code = 130
try:
    while not (here / "pid.0").exists():  # which the end of another would end, not yet listening
        time.sleep(0.01)
    while told[number] == "waits" or told[number] == "follows" and not (here / "ended.0").exists():
        time.sleep(0.01)
    code = 130 if told[number] == "follows" else int(told[number])
except KeyboardInterrupt:
    print("saved", flush=True)
(here / f"ended.{number}").touch()
sys.exit(code)
"""

# Tasks without sandboxes, and no warm start.
TINY = (
    "--config=configs/smoke.py",
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.warm_start.max_steps=0",
    "--config.rl.steps=1000",
)


@pytest.fixture
def hosts(tmp_path):
    """Starts launch/hosts.sh on two hosts, whose folders hold the stand-in for training.

    patience_s: how long the rest may take to end when one process has.
    """
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("ssh", SSH)
    (tmp_path / "a folder/.venv").mkdir(parents=True)
    training = CommandsOnPath(tmp_path / "a folder/.venv/bin")
    training.add("python", TRAINING)

    def call(*arguments, patience_s=60, options=(), variables=None):
        script = tmp_path / "hosts.sh"
        text = SCRIPT.read_text()
        assert "patience_s=60\n" in text
        script.write_text(text.replace("patience_s=60\n", f"patience_s={patience_s}\n"))
        where = [f"--directory={tmp_path}/a folder", *options, "127.0.0.1", "ale@127.0.0.1", "--"]
        return subprocess.Popen(
            ["bash", script, *where, *arguments],
            env=commands.environment | (variables or {}),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    call.commands, call.training = commands, training
    return call


def wait_for(*files):
    deadline = time.monotonic() + DEADLINE_S
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def finish(process):
    printed, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, printed


def test_each_host_gets_the_same_line_as_it_was_given_and_a_number(hosts, tmp_path):
    code, printed = finish(hosts("--config=0,0", NASTY))
    assert code == 0, printed
    same = ["-m", "ale_jax.launch", "--config=0,0", NASTY]
    assert sorted(hosts.training.calls()) == [
        ["python", *same, "--coordinator=127.0.0.1:8476", "--processes=2", f"--process={number}"]
        for number in (0, 1)
    ]
    assert {call[-2] for call in hosts.commands.calls()} == {"127.0.0.1", "ale@127.0.0.1"}
    assert not list(tmp_path.rglob("stolen"))


def test_a_dry_run_prints_what_it_would_run_and_runs_nothing(hosts, tmp_path):
    code, printed = finish(hosts("--config=0,0", NASTY, options=["--dry-run", "--port=9"]))
    assert code == 0 and hosts.commands.calls() == []
    # What was printed, given to a shell, is what would have run.
    shell = ["bash", "-c", printed]
    with subprocess.Popen(shell, env=hosts.commands.environment, stdin=subprocess.PIPE) as ran:
        assert ran.wait(DEADLINE_S) == 0
    assert len(hosts.commands.calls()) == 2
    same = ["--config=0,0", NASTY, "--coordinator=127.0.0.1:9", "--processes=2"]
    assert [call[3:-1] for call in hosts.training.calls()] == [same, same]
    assert not list(tmp_path.rglob("stolen"))


def test_all_that_process_0_prints_is_shown_however_soon_it_ends(hosts):
    late = f"""
import time
if "--follow" in arguments:
    time.sleep(3)
os.execv({shutil.which("tail")!r}, ["tail", *arguments])
"""
    hosts.commands.add("tail", late)
    code, printed = finish(hosts("--config=0,0"))
    assert code == 0
    assert printed.count("process 0\n") == 2  # as it came, and as the last line of process 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_process_0_alone(hosts, stop):
    running = hosts("--config=waits,follows")
    wait_for(*(hosts.training.folder / f"pid.{number}" for number in (0, 1)))
    running.send_signal(stop)
    code, printed = finish(running)
    assert code == 130
    assert printed.count("saved") == 2  # as it came, and as the last line of process 0
    assert "process 1 on ale@127.0.0.1 ended with 130; its last lines:\n    process 1\n" in printed


def test_when_one_has_ended_the_others_are_ended(hosts):
    code, printed = finish(hosts("--config=waits,3", patience_s=1))
    assert code == 130
    assert "process 0 on 127.0.0.1 ended with 130" in printed
    assert "process 1 on ale@127.0.0.1 ended with 3" in printed


def test_the_first_code_that_is_not_0_is_its_own(hosts):
    assert finish(hosts("--config=0,3"))[0] == 3


def test_a_second_signal_reaches_all(hosts):
    running = hosts("--config=waits,waits", patience_s=1000)
    wait_for(*(hosts.training.folder / f"pid.{number}" for number in (0, 1)))
    running.send_signal(signal.SIGTERM)
    wait_for(hosts.training.folder / "ended.0")
    assert not (hosts.training.folder / "ended.1").exists()
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 130
    assert (hosts.training.folder / "ended.1").exists()


def test_none_outlives_the_end_of_the_program(hosts):
    running = hosts("--config=waits,waits")
    wait_for(*(hosts.training.folder / f"pid.{number}" for number in (0, 1)))
    running.kill()
    running.wait()
    wait_for(*(hosts.training.folder / f"ended.{number}" for number in (0, 1)))
    finish(running)  # nothing holds what it printed to open, either


def test_two_hosts_train_and_save_when_they_are_stopped(hosts, tmp_path):
    """Training itself, on processes of one device each."""
    (tmp_path / "a folder/.venv/bin/python").write_text(
        f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} "$@"\n'
    )
    quick = {"XLA_FLAGS": QUICK_COMPILE, "JAX_PLATFORMS": "cpu"}
    workdir = tmp_path / "run"
    running = hosts(
        *TINY, f"--workdir={workdir}", options=[f"--port={free_port()}"], variables=quick
    )
    interrupt(running, workdir, signal.SIGTERM, step=1)
    code, printed = finish(running)
    assert code == 130, printed
    assert "the same command continues from the last checkpoint" in printed
    assert "process 1 on ale@127.0.0.1 ended with 130" in printed
    assert max(workdir.glob("checkpoints/step_*/manifest.json")).parent.name >= "step_00000001"
