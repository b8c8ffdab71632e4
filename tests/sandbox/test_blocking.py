"""Threads and the one event loop that their sandboxes live in."""

import subprocess
import sys

FIRST_USE = """
import asyncio, sys, threading
from ale_jax.sandbox import blocking
sys.setswitchinterval(1e-6)
new_loop = asyncio.new_event_loop

def slow_new_loop():
    made.append(new_loop())
    threading.Event().wait(0.05)
    return made[-1]

async def which():
    return id(asyncio.get_running_loop())

made, seen = [], []
asyncio.new_event_loop = slow_new_loop
look = lambda: seen.append(blocking.wait_for(which()))
threads = [threading.Thread(target=look) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(made), len(set(seen)))
"""


def test_threads_that_come_first_at_once_share_one_loop():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 1\n", done.stderr
