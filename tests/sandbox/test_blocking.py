"""Threads and the one event loop that their sandboxes live in."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.renewal import whole

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

def look():
    seen.append(blocking.wait_for(which()))

made, seen = [], []
asyncio.new_event_loop = slow_new_loop
threads = [threading.Thread(target=look) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(made), len(set(seen)))
"""


@pytest.mark.heavy
def test_threads_that_come_first_at_once_share_one_loop():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 1\n", done.stderr


FORKED = """
import os, signal
from ale_jax.sandbox import blocking

async def answer():
    return b"done"

blocking.wait_for(answer())
reader, writer = os.pipe()
if not os.fork():
    signal.alarm(50)  # it must not outlive a failure of this test
    os.write(writer, blocking.wait_for(answer()))
    os._exit(0)
os.close(writer)
print(os.read(reader, 100).decode())
"""


@pytest.mark.heavy
def test_a_forked_process_has_a_loop_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "done\n", done.stderr


class Interrupted(StartsBlocking):
    """A runtime whose starts are interrupted. closed: how many sandboxes were."""

    def __init__(self, begin):
        self.begin, self.closed = begin, 0

    async def launch(self, spec, labels):
        return await self.begin(self)

    async def close(self):
        self.closed += 1


async def slow(sandbox):
    return await whole(slowly(sandbox))


async def slowly(sandbox):
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    return sandbox


async def failing(sandbox):
    await slowly(sandbox)
    raise SandboxStartError("no such image")


async def faster(sandbox):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(0.1)  # until that thread has seen it
    return sandbox


@pytest.mark.parametrize("begin", [slow, failing, faster])
def test_an_interrupted_start_leaves_nothing(begin, monkeypatch):
    monkeypatch.setattr(AsyncSandbox, "close", Interrupted.close)
    runtime = Interrupted(begin)
    with pytest.raises(KeyboardInterrupt):
        runtime.start(None, {})
    assert runtime.closed == (0 if begin is failing else 1)
