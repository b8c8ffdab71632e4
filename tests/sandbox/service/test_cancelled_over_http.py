"""Requests whose callers do not wait for them any more, by each way in which a client may leave."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from ale_jax.sandbox.sdk.async_client import AsyncSandboxClient
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, over

CLI = [sys.executable, "-m", "ale_jax.sandbox.cli.main"]
SLEEP = "touch begun; sleep 876"


class Gated:
    """A runtime whose launches wait until `gate` is set. waiting: set once one does."""

    def __init__(self, runtime):
        self.runtime, self.name = runtime, runtime.name
        self.gate, self.waiting = threading.Event(), threading.Event()

    async def launch(self, *arguments):
        self.waiting.set()
        await asyncio.to_thread(self.gate.wait)
        return await self.runtime.launch(*arguments)

    def __getattr__(self, name):
        return getattr(self.runtime, name)


@pytest.fixture
def gated(runtime):
    slow = Gated(runtime)
    with over(slow) as service:
        service.gate, service.waiting = slow.gate, slow.waiting
        yield service
        slow.gate.set()


def living(service):
    with service.client() as client:
        return [each for each in client.statuses() if each.cause is None]


def is_idle(box):
    """Whether the main session takes a command, and nothing of the last one is left."""
    listed = box.run("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline 2>&-)")
    return "sleep 876 " not in listed.output


@pytest.mark.parametrize("call", ["run", "exec"])
def test_a_cancelled_call_ends_its_command(real, remote, call):
    async def scene():
        async with AsyncSandboxClient(real.url, ANN) as client:
            box = await client.attach(remote.id)
            calling = asyncio.ensure_future(getattr(box, call)(SLEEP, timeout=60))
            while (await box.exec("test -e begun")).exit_code:
                pass
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

    asyncio.run(scene())
    assert is_idle(remote)


@pytest.mark.heavy
@pytest.mark.parametrize("count", [None, 2])
def test_a_cancelled_start_leaves_no_sandbox(gated, count):
    async def scene():
        async with AsyncSandboxClient(gated.url, ANN) as client:

            async def start():
                await (client.start(SPEC) if count is None else client.start_many(SPEC, count))

            starting = asyncio.ensure_future(start())
            await asyncio.to_thread(gated.waiting.wait)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

    asyncio.run(scene())
    assert living(gated) == []


@pytest.mark.heavy
@pytest.mark.parametrize("words", [["start", "--set", "memory_mb=96", "--set", "files_mb=8"]])
def test_ctrl_c_of_the_command_line_leaves_no_sandbox(gated, words):
    environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": gated.url}
    line = subprocess.Popen([*CLI, *words], env=environment, stdout=subprocess.PIPE)
    with line:
        assert gated.waiting.wait(60)
        line.send_signal(signal.SIGINT)
        assert line.wait(60) == 130
        assert line.stdout.read() == b""
    assert living(gated) == []


def test_ctrl_c_of_the_command_line_ends_what_it_executes(real, remote):
    environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": real.url}
    line = subprocess.Popen([*CLI, "exec", remote.id, SLEEP], env=environment)
    with line:
        while remote.exec("test -e begun").exit_code:
            pass
        line.send_signal(signal.SIGINT)
        assert line.wait(60) == 130
    while not is_idle(remote):  # the service sees it at the end of the connection
        pass


def test_a_client_without_a_request_id_that_hangs_up_ends_its_command(real, remote):
    with real.http() as http, pytest.raises(httpx.ReadTimeout):
        body = {"command": SLEEP, "timeout": 60.0}
        http.post(f"/v1/sandboxes/{remote.id}/run", json=body, timeout=0.5)
    while True:
        with contextlib.suppress(Exception):  # busy, until the service has seen it
            if is_idle(remote):
                return


@pytest.mark.heavy
def test_a_client_without_a_request_id_that_hangs_up_leaves_no_sandbox(gated):
    with gated.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/sandboxes", json={"spec": SPEC.to_json()}, timeout=1.0)
    assert gated.waiting.is_set()
    while living(gated):
        pass


def request(id):
    return {"X-Request-Id": id}


def test_what_was_started_just_before_is_stopped(memory, http):
    started = http.post("/v1/sandboxes", json={}, headers=request("one"))
    assert (started.status_code, len(living(memory))) == (201, 1)
    assert http.delete("/v1/requests/one").status_code == 204
    assert living(memory) == []
    assert http.delete("/v1/requests/one").status_code == 204
    again = http.post("/v1/sandboxes", json={}, headers=request("one"))
    assert (again.status_code, again.json()["error"]["kind"]) == (409, "cancelled")


def test_a_sandbox_that_was_there_before_stays(memory, http):
    assert http.post("/v1/sandboxes", json={"id": "x"}, headers=request("a")).status_code == 201
    assert http.post("/v1/sandboxes", json={"id": "x"}, headers=request("b")).status_code == 200
    http.delete("/v1/requests/b")
    assert [each.id for each in living(memory)] == ["x"]


def test_a_request_that_comes_after_its_cancellation_is_refused(memory, http):
    assert http.delete("/v1/requests/late").status_code == 204
    answer = http.post("/v1/sandboxes", json={}, headers=request("late"))
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "cancelled")
    assert living(memory) == []


def test_whoever_still_waits_for_a_cancelled_request_is_told(memory, http):
    http.post("/v1/sandboxes", json={"id": "x"})
    memory.pool.gate = asyncio.Event()
    answers = []

    def run():
        with memory.http() as other:
            body = {"command": "sleep"}
            answers.append(other.post("/v1/sandboxes/x/run", json=body, headers=request("r")))

    thread = threading.Thread(target=run)
    thread.start()
    while not memory.pool.calls:
        pass
    http.delete("/v1/requests/r")
    thread.join()
    assert (answers[0].status_code, answers[0].json()["error"]["kind"]) == (409, "cancelled")


def test_nobody_cancels_requests_of_others(memory, http):
    http.post("/v1/sandboxes", json={"id": "x"}, headers=request("one"))
    with memory.http(BOB) as bob:
        assert bob.delete("/v1/requests/one").status_code == 204
    assert [each.id for each in living(memory)] == ["x"]
    assert http.delete("/v1/requests/a%20b").status_code == 422


@pytest.mark.heavy
def test_a_cancelled_start_of_a_loop_that_ends_leaves_no_sandbox(gated):
    """As with Ctrl-C in `asyncio.run`: the loop is there until the service was told."""

    async def scene():
        async with AsyncSandboxClient(gated.url, ANN) as client, client.start(SPEC):
            pass

    async def interrupted():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await scene()

    asyncio.run(interrupted())
    assert gated.waiting.is_set() and living(gated) == []
    gated.gate.set()
    with gated.client() as client, client.start(SPEC) as box:
        assert box.run("echo hi").output == "hi\n"
