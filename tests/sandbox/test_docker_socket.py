"""The short way between a container's runner and its host."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from docker.types import Mount

from ale_jax.sandbox import docker_container, docker_runtime
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.docker_runtime import DockerRuntime
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.heavy

CONNECT = f"""python3 -c '
import socket
socket.socket(socket.AF_UNIX).connect("{docker_container.TARGET}")'"""


@pytest.fixture
def docker_only():
    if reason := docker_runtime.probe(SPEC):
        pytest.skip(f"docker: {reason}")


def mount(source: str) -> Mount:
    return Mount(docker_container.TARGET, source, type="bind")


def in_one(runtime, check) -> None:
    """check: a coroutine function of a sandbox that is new, and its link."""

    async def play():
        sandbox = await runtime.launch(SPEC, {"run": "tests"})
        try:
            await check(sandbox, sandbox._machine.link)
        finally:
            await sandbox.close()

    asyncio.run(play())


def is_direct(link) -> bool:
    return link._transport is not link._attached


async def works(sandbox) -> bool:
    await sandbox.write({"f": b"x" * 500_000})
    return (await sandbox.run("wc -c < f")).output == "500000\n"


def test_a_runner_takes_it_and_nobody_can_after_it(docker_only):
    async def check(sandbox, link):
        assert is_direct(link)
        assert await works(sandbox)
        refused = await sandbox.run(CONNECT)
        assert "ConnectionRefusedError" in refused.output

    runtime = DockerRuntime(SPEC)
    in_one(runtime, check)
    assert list(runtime._sockets._folder.iterdir()) == []


def test_without_the_folder_at_the_daemon_the_streams_remain(docker_only, monkeypatch):
    monkeypatch.setattr(docker_container, "_mount", lambda path: mount(f"/not-there{path}"))
    runtime = DockerRuntime(SPEC)

    async def check(sandbox, link):
        assert not is_direct(link)
        assert await works(sandbox)
        assert "No such file" in (await sandbox.run(CONNECT)).output

    in_one(runtime, check)


def test_a_runner_that_cannot_connect_keeps_the_streams(docker_only, monkeypatch):
    runtime = DockerRuntime(SPEC)
    monkeypatch.setattr(docker_container, "_mount", lambda path: mount(str(path.parent)))

    async def check(sandbox, link):
        assert not is_direct(link)
        assert await works(sandbox)

    in_one(runtime, check)


def test_a_daemon_in_trouble_is_not_taken_for_one_without_the_folder(docker_only):
    with contextlib.closing(docker_runtime.docker.from_env().api) as api:
        with pytest.raises(docker_runtime.ImageNotFound):
            docker_container.RunnerSockets(api, "ale-none-such", Owner.current())


def test_folders_of_the_dead_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = Owner.current()
    dead = Owner(here.boot, here.namespace, here.pid, here.start + 1)
    elsewhere = Owner("x", 1, 1, 1)
    for owner in (here, dead, elsewhere, "nobody"):
        folder = Path(tempfile.mkdtemp(prefix=f"{docker_container.PREFIX}{owner}-"))
        (folder / "0").touch()
    docker_container.remove_abandoned()
    assert len(list(tmp_path.iterdir())) == 3
    assert not list(tmp_path.glob(f"*{dead}-*"))
