"""What processes of the agent start with."""

import contextlib
import os

import pytest

from ale_jax.sandbox.runner.session import FEED_FD, REPLY_FD
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.heavy

HOARD = f"x=$(head -c {2 * SPEC.memory_mb << 20} /dev/zero | tr '\\0' a)"


@contextlib.contextmanager
def _next_descriptor(number):
    """Within the block, this process's next descriptor is `number`, or a higher one."""
    with contextlib.ExitStack() as stack:
        while (taken := os.dup(0)) < number:
            stack.callback(os.close, taken)
        os.close(taken)
        yield


def test_control_groups_are_entered_whatever_their_descriptors_are(runtime):
    """The runner inherits them under the numbers that they have in this process, some of which a
    session uses."""
    for number in range(FEED_FD - 24, REPLY_FD + 1, 2):
        with _next_descriptor(number), runtime.start(SPEC, {"run": "tests"}) as box:
            assert box.run("n=1; echo here").output == "here\n", number
            assert box.run("echo $n").output == "1\n", number  # in the same session
            assert 137 in (box.run(HOARD).exit_code, box.run("echo $?").exit_code), number
