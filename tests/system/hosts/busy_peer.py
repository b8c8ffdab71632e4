"""A process whose clock is an hour ahead, and whose engine is busy while it answers:

python busy_peer.py FD
"""

import socket
import sys
import threading
import time

AHEAD = 3600.0
_real = time.monotonic
time.monotonic = lambda: _real() + AHEAD

from ale_jax.system.hosts.connection import Connection  # noqa: E402 (after the clock is set)
from ale_jax.system.hosts.conversations import ConversationService  # noqa: E402
from ale_jax.system.hosts.engine_times import EngineTimes  # noqa: E402

WORK_S = 0.002  # so that two of them are apart


class BusyLedger:
    """A ledger that does nothing but take time."""

    def __init__(self, times):
        self._times = times

    def observe(self, observer):
        pass

    def stop(self, name):
        start = time.monotonic()
        time.sleep(WORK_S)
        self._times.sampled(2, start, time.monotonic())
        time.sleep(WORK_S)


if __name__ == "__main__":
    times = EngineTimes()
    ConversationService(
        Connection(socket.socket(fileno=int(sys.argv[1]))), BusyLedger(times), times
    )
    for thread in threading.enumerate():
        if thread.name == "conversations":
            thread.join()
