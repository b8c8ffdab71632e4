"""SIGINT and SIGTERM end a run where it is safe; wherever they land, within the grace."""

import contextlib
import signal
import subprocess
import sys

import pytest

from ale_jax.system.stopping import ANOTHER_WAS_TOLD, SIGNALS, StopSignals

pytestmark = pytest.mark.heavy

PROGRAM = """
import os, signal, sys, time
from ale_jax.system.stopping import StopSignals

def wait(stop):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stop.check()
        time.sleep(0.001)

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)


try:
    with StopSignals(grace_seconds=float(sys.argv[1])) as stop:
        print("running", flush=True)
        {body}
except KeyboardInterrupt:
    print("saved", flush=True)
    sys.exit(130)
"""


def _started(body, grace=60.0):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{body}", body), str(grace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "running\n"
    return process


def _ends(process, says):
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out) == (130, says), err
    return err


def _goes_on(process):
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.2)


@pytest.mark.parametrize("sign", SIGNALS)
def test_a_signal_raises_where_the_run_looks_for_it(sign):
    process = _started("wait(stop)")
    process.send_signal(sign)
    _ends(process, "saved\n")


def test_a_signal_that_lands_in_a_finalizer_is_not_lost():
    _ends(_started("Dying(); wait(stop)"), "saved\n")


def test_a_process_that_does_not_look_ends_after_the_grace():
    process = _started("time.sleep(60)", grace=0.1)
    process.send_signal(signal.SIGTERM)
    assert "could not be saved within 0.1 s" in _ends(process, "")


@pytest.mark.parametrize(
    "one_after_another",
    [
        [(signal.SIGINT, signal.SIGTERM)],
        [(signal.SIGTERM,), (ANOTHER_WAS_TOLD,)],
        [(ANOTHER_WAS_TOLD,), (signal.SIGTERM,)],
    ],
    ids=["in quick succession", "another was told", "another was told before"],
)
def test_what_counts_as_one_signal_goes_on_and_a_later_one_ends_at_once(one_after_another):
    process = _started("time.sleep(60)")
    for together in one_after_another:
        for sign in together:
            process.send_signal(sign)
        _goes_on(process)
    for _ in range(2):  # a busy machine may hear the first so late that the next is the same
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.2)
    assert "at once" in _ends(process, "")


def test_that_another_process_was_told_ends_this_one_where_it_looks():
    process = _started("wait(stop)")
    process.send_signal(ANOTHER_WAS_TOLD)
    _ends(process, "saved\n")


def test_handlers_are_as_before_after_the_block():
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopSignals(60.0) as stop:
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            while True:
                stop.check()
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_what_is_saved_is_not_waited_for_and_not_called_lost():
    process = _started("stop.note_saved(); time.sleep(60)", grace=0.1)
    process.send_signal(signal.SIGTERM)
    assert _ends(process, "") == (
        "interrupted: the same command continues from the last checkpoint\n"
    )


def test_a_signal_is_heard_though_another_library_took_the_socket_away():
    process = _started("signal.set_wakeup_fd(-1); time.sleep(0.2); wait(stop)")
    process.send_signal(signal.SIGTERM)
    _ends(process, "saved\n")
