"""Runs of two processes, as a user starts them, also if a process dies or is stopped."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ale_jax.monitor.timeline import (
    ENGINES,
    LEARNER,
    MAX_LANES,
    SAMPLING,
    TIMELINE_FILE,
    Lane,
    read_timeline,
)
from tests.monitor.traces import trace_events
from tests.quick_compile import QUICK_COMPILE
from tests.system.untimed import rl_lines
from tests.system.whole_runs import command, interrupt

pytestmark = pytest.mark.slow

STEPS = 5
# Failures are punished, so that there is something to learn from a policy that knows nothing.
OVERRIDES = (
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.rl.alpha=0.0",
    "--config.timeline=True",
    f"--config.rl.steps={STEPS}",
    "--config.algo.advantage.mean=none",
    "--config.algo.advantage.failure_reward=-1.0",
)
ENDS_S = 120.0  # only against a hang


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a run on `processes` processes, which have four devices together."""
    compiled = tmp_path_factory.mktemp("compiled")

    def call(workdir, processes):
        flags = f"--xla_force_host_platform_device_count={4 // processes} {QUICK_COMPILE}"
        line = command(workdir, "auto", *OVERRIDES, f"--config.compilation_cache={compiled}")
        return subprocess.Popen(
            [*line, f"--spawn={processes}"],
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return call


def finish(process):
    """(exit code, what it printed last)."""
    printed, _ = process.communicate(timeout=500)
    lines = [line for line in printed.splitlines() if "[Gloo]" not in line]
    return process.returncode, lines[-1]


def finish_soon(process):
    """Like `finish`, of a run that something has ended."""
    began = time.monotonic()
    found = finish(process)
    assert time.monotonic() - began < ENDS_S
    return found


def follower(leader):
    """The pid of the run's other process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent == leader.pid and b"--process=1" in words:
            return int(folder.name)
    raise AssertionError("there is no other process")


def wait_for_follower(leader):
    while True:
        with contextlib.suppress(AssertionError):
            return follower(leader)
        assert leader.poll() is None, leader.communicate()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def unbroken_run(start, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken") / "run"
    code, last = finish(start(workdir, 2))
    assert code == 0, last
    return workdir


@pytest.fixture(scope="module")
def unbroken(unbroken_run):
    return rl_lines(unbroken_run)


def assert_same(workdir, unbroken):
    lines = rl_lines(workdir)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line, other in zip(lines, unbroken, strict=True):
        assert line.keys() == other.keys() and line["tokens_crc32"] == other["tokens_crc32"]
        for name, value in line.items():
            if isinstance(value, float):
                np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert any(line.get("grad_norm", 0) > 0 for line in lines), "nothing was learned"


def test_the_timeline_has_what_the_engine_of_each_process_did(unbroken_run):
    """Of the second, until the last conversation was closed, and on the first one's clock: they
    are of one machine, so that its work lies between the beginning and the end of the run's. The
    last dispatch has begun by then: it gives the last replies before it ends."""
    spans = read_timeline(unbroken_run / TIMELINE_FILE).records
    laps = [span for span in spans if span.lane.process == LEARNER]
    for number in (0, 1):
        work = [span for span in spans if span.lane == Lane(ENGINES, number)]
        assert work and {span.name for span in work} == {SAMPLING}
        begun = [span.start for span in work]
        assert laps[0].start <= min(begun) and max(begun) <= laps[-1].end
    events = trace_events(unbroken_run / TIMELINE_FILE)
    told = [event for event in events if "clock_error_us" in event.get("args", ())]
    assert {event["tid"] % MAX_LANES for event in told} == {1}


def test_a_lost_process_ends_the_others_and_the_run_goes_on_with_fewer(start, unbroken, tmp_path):
    workdir = tmp_path / "run"
    leader = start(workdir, 2)
    interrupt(leader, workdir, 0, step=2)
    os.kill(follower(leader), signal.SIGKILL)
    code, last = finish_soon(leader)
    assert code == 2
    assert last.startswith("error: process 1 of this run is lost") and "same command" in last
    code, last = finish(start(workdir, 1))
    assert code == 0, last
    assert_same(workdir, unbroken)


def test_a_signal_to_any_process_saves_one_step_of_all(start, unbroken, tmp_path):
    workdir = tmp_path / "run"
    leader = start(workdir, 2)
    interrupt(leader, workdir, 0, step=2)
    os.kill(follower(leader), signal.SIGTERM)
    code, last = finish_soon(leader)
    assert code == 130
    assert last == "interrupted: the same command continues from the last checkpoint"
    saved = max(p.name for p in (workdir / "checkpoints").iterdir())
    assert saved == f"step_{max(line['step'] for line in rl_lines(workdir)):08d}"
    code, last = finish(start(workdir, 2))
    assert code == 0, last
    assert_same(workdir, unbroken)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_processes_have_met_ends_them_at_once(start, tmp_path, sign):
    leader = start(tmp_path / "run", 2)
    other = wait_for_follower(leader)
    os.kill(other, signal.SIGSTOP)  # so that they never meet
    leader.send_signal(sign)
    try:
        code, last = finish_soon(leader)
    finally:
        leader.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)
    assert code == 130
    assert last == "interrupted: the same command continues from the last checkpoint"
    assert not Path("/proc", str(other)).exists()


def test_a_lost_first_process_ends_the_others(start, tmp_path):
    workdir = tmp_path / "run"
    leader = start(workdir, 2)
    interrupt(leader, workdir, signal.SIGKILL, step=1)
    # The output ends when no process has it any more; both have it.
    printed, _ = leader.communicate(timeout=ENDS_S)
    # jax hears of it through a connection of its own, and ends the process if it is first.
    reasons = ("error: the first process of this run is lost", "JAX distributed service detected")
    assert any(reason in printed for reason in reasons), printed
