"""A runner as seen from the host, and requests to it that no host of ours sends."""

import os

from ale_jax.sandbox.blocking import wait_for
from benchmarks.sandbox.host_view import runner_pid

ANSWER_S = 20.0


def tell(box, do, **request):
    """Sends a request as it is. SandboxError if the runner refuses it."""
    return wait_for(box.later._ask({"do": do, **request}, ANSWER_S))


def open_files(box):
    """The number of descriptors of its runner. Only root may look."""
    return len(os.listdir(f"/proc/{runner_pid(box.later)}/fd"))
