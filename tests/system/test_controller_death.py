"""A controller that is interrupted or killed in the middle of episodes leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system import sandboxes

pytestmark = pytest.mark.heavy

LIMIT_S = 60.0


WAYS = (signal.SIGINT, signal.SIGKILL)


@pytest.fixture(scope="module")
def controllers(runtime_name):
    """One that holds episodes for each of WAYS, started together."""
    started = {
        how: subprocess.Popen(
            [sys.executable, "-m", "tests.system.held_workers", runtime_name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        for how in WAYS
    }
    yield started
    for controller in started.values():
        controller.kill()
        controller.communicate()


@pytest.mark.parametrize("how", WAYS)
def test_nothing_outlives_the_controller(controllers, runtime_name, how):
    controller = controllers[how]
    line = controller.stdout.readline()
    assert line, controller.stderr.read()
    actors = json.loads(line)
    held = [each for pid in actors for each in sandboxes.of(runtime_name, pid)]
    assert len(held) == 4
    if how == signal.SIGINT:  # a terminal's Ctrl-C reaches the whole process group
        os.killpg(controller.pid, how)
    else:
        controller.kill()
    assert controller.wait(LIMIT_S) == -how
    deadline = time.monotonic() + LIMIT_S
    while any(map(sandboxes.process_exists, actors)) or any(
        sandboxes.exists(runtime_name, each) for each in held
    ):
        assert time.monotonic() < deadline, "something outlived the controller"
        time.sleep(0.05)
