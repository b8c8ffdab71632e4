"""Calls whose callers do not wait for them any more: what they had begun ends with them."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.cgroups import Owner
from benchmarks.sandbox.host_view import leftovers
from tests.sandbox.conftest import SPEC, processes
from tests.sandbox.pool.fakes import until


async def cancelled(call, when):
    """Cancels `call` when `when` is true."""
    calling = asyncio.ensure_future(call)
    while not calling.done() and not await when():
        pass
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


def begun(box):
    """Whether a command inside has made the file `begun`."""

    async def look():
        return (await box.exec("test -e begun")).exit_code == 0

    return look


@pytest.mark.each_runtime
def test_a_cancelled_run_ends_its_command_and_its_session_takes_the_next(box):
    async def scene(box):
        await box.run("x=5; sleep 654 &")
        command = "(sleep 987 &); touch begun; sleep 876; touch late"
        await cancelled(box.run(command, timeout=60), begun(box))
        result = await box.run("echo $x; ls; rm begun")
        assert (result.output, result.exit_code) == ("5\nbegun\n", 0)

    wait_for(scene(box.later))
    assert "sleep 987" not in processes(box) and "sleep 876" not in processes(box)
    assert "sleep 654" in processes(box)  # of an earlier command


def test_a_cancelled_run_that_takes_no_interrupt_loses_its_shell_only(box):
    async def scene(box):
        command = "trap '' INT; touch begun; while :; do :; done"
        await cancelled(box.run(command, timeout=60), begun(box))
        assert (await box.run("rm begun; pwd")).output == "/work\n"

    wait_for(scene(box.later))


def test_of_a_command_that_was_half_sent_nothing_runs(box):
    async def scene(box):
        async def at_once():
            return True

        await cancelled(box.run("touch begun\n" + "#" * (8 << 20)), at_once)
        assert (await box.run("ls")).output == ""

    wait_for(scene(box.later))


def test_a_run_that_is_cancelled_as_it_ends_leaves_its_session_free(box):
    async def scene(box):
        for pause in range(40):
            call = asyncio.ensure_future(box.run("true"))
            await asyncio.sleep(pause / 20_000)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            assert (await box.run("echo free")).output == "free\n"

    wait_for(scene(box.later))


@pytest.mark.each_runtime
def test_a_cancelled_exec_ends_all_that_it_has_started(box):
    async def scene(box):
        await cancelled(box.exec("sleep 987 & touch begun; sleep 876", timeout=60), begun(box))
        await box.run("rm begun")

    wait_for(scene(box.later))
    assert "sleep 987" not in processes(box) and "sleep 876" not in processes(box)


def test_a_cancelled_expect_leaves_the_dialogue_to_the_next(box):
    async def scene(box):
        await box.begin("cat")
        call = asyncio.ensure_future(box.expect("never", timeout=60))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await box.send("here\n")
        assert (await box.expect("here")).matched
        await box.interrupt()

    wait_for(scene(box.later))


@pytest.mark.heavy
@pytest.mark.each_runtime
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1, 0.3])
def test_a_cancelled_start_leaves_no_sandbox(runtime, seconds):
    async def scene():
        before = set(leftovers(runtime.name, str(Owner.current())))
        start = asyncio.ensure_future(runtime.launch(SPEC, {}))
        await asyncio.sleep(seconds)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await start).close()
        await until(lambda: set(leftovers(runtime.name, str(Owner.current()))) <= before)

    wait_for(scene())


@contextlib.contextmanager
def interrupted_when(look):
    """Sends this process Ctrl-C when `look` is true."""

    def wait():
        while not wait_for(look()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


def test_ctrl_c_ends_a_run(box):
    with interrupted_when(begun(box.later)):
        box.run("touch begun; sleep 876", timeout=60)
    assert box.run("ls").output == "begun\n"
    assert "sleep 876" not in processes(box)
