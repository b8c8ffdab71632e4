"""What the service holds in memory for a token: the size of bodies and downloads, for no longer
than it has them."""

import asyncio
import contextlib
import threading

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.service import caller, uploads
from ale_jax.sandbox.service.access import ServiceSettings, Tenant
from ale_jax.sandbox.service.caller import DOWNLOAD_BYTES, Caller
from ale_jax.sandbox.service.tenants import MB, UNCOUNTED_BYTES, Quota, TenantAccount
from ale_jax.sandbox.spec import WORK, SandboxSpec
from tests.sandbox.pool.fakes import in_a_loop
from tests.sandbox.service.conftest import ANN, over_memory
from tests.sandbox.service.memory_pool import MemoryPool
from tests.sandbox.test_death import wait_until

SPEC = SandboxSpec()
FAST = {"bytes_per_second": float("inf")}


@contextlib.asynccontextmanager
async def calling(**limits):
    """Yields a caller in a call, with the sandbox "a"."""
    tenant = Tenant("ann", quota=Quota(**limits))
    pool, account = MemoryPool(), TenantAccount("ann", tenant.quota, shares=False)
    with account.call() as ticket:
        by = Caller(pool, tenant, ticket)
        await by.start(StartRequest(SPEC, id="a"))
        yield by
    assert account._buffered == 0


def packs(by, size):
    """An answer of the pool: an archive of `size` bytes, where it may be that large. Returns what
    was asked for and what was held, each time."""
    seen = []

    def pack(id, arguments):
        seen.append((arguments["max_bytes"], by.account._buffered))
        if size > arguments["max_bytes"]:
            longer = f"the archive is longer than {arguments['max_bytes']} bytes"
            raise SandboxError(f"sandbox cannot pack: {longer}")
        return bytes(size)

    by.pool.answers["pack"] = pack
    return seen


@in_a_loop
async def test_a_download_holds_what_it_is_tried_with_and_then_its_size():
    async with calling() as by:
        seen = packs(by, 40 * MB)
        assert len(await by.download("a", WORK)) == 40 * MB
        assert seen == [(size, size) for size in (8 * MB, 32 * MB, 128 * MB)]
        assert by.account._buffered == 40 * MB
    assert DOWNLOAD_BYTES[-1] == uploads.MAX_BYTES


@in_a_loop
async def test_a_token_with_a_small_buffer_downloads_what_fits_into_it():
    async with calling(buffer_mb=9) as by:
        seen = packs(by, 9 * MB)
        assert len(await by.download("a", WORK)) == 9 * MB
        assert seen == [(size, size) for size in (8 * MB, 9 * MB)]


@in_a_loop
async def test_a_download_that_is_larger_than_the_buffer_names_it():
    async with calling(buffer_mb=9) as by:
        packs(by, 9 * MB + 1)
        told = "longer than 9437184 bytes, the buffer_mb of this token: transfer it in parts"
        with pytest.raises(SandboxError, match=told):
            await by.download("a", WORK)
        assert by.account._buffered == 0


@in_a_loop
async def test_a_download_that_is_larger_than_any_may_be_says_so(monkeypatch):
    monkeypatch.setattr(uploads, "MAX_BYTES", 9 * MB)
    async with calling() as by:
        seen = packs(by, 9 * MB + 1)
        with pytest.raises(SandboxError, match=r"longer than 9437184 bytes$"):
            await by.download("a", WORK)
        assert [size for size, _ in seen] == [8 * MB, 9 * MB]


@pytest.mark.parametrize("error", [SandboxError("cannot pack: tar failed"), SandboxLost("it died")])
@in_a_loop
async def test_another_failure_of_a_download_is_not_tried_again(error):
    async with calling() as by:
        by.pool.answers["pack"] = error
        with pytest.raises(type(error), match=str(error)):
            await by.download("a", WORK)
        assert [method for _, method, _ in by.pool.calls] == ["pack"]
        assert by.account._buffered == 0


@in_a_loop
async def test_what_a_read_may_return_is_given_back_when_its_size_is_known():
    async with calling() as by:
        by.pool.answers["read"] = bytes(2 * MB)
        await by.call("a", "read", path="x", max_bytes=64 * MB)
        assert by.account._buffered == 2 * MB


@in_a_loop
async def test_what_a_call_holds_beside_a_download_is_kept():
    async with calling() as by:
        await by.ticket.hold(3 * MB)
        by.pool.answers["read"] = bytes(2 * MB)
        await by.call("a", "read", path="x", max_bytes=64 * MB)
        assert by.account._buffered == 5 * MB


@in_a_loop
async def test_small_bodies_are_not_counted():
    async with calling(buffer_mb=1) as by:
        await by.ticket.hold(MB)
        await asyncio.wait_for(by.ticket.hold(UNCOUNTED_BYTES), 30)  # it need not wait
        assert by.account._buffered == MB
        by.ticket.keep(UNCOUNTED_BYTES)
        assert by.account._buffered == 0
    assert Quota().calls * UNCOUNTED_BYTES <= Quota().buffer_mb * MB / 8


@contextlib.contextmanager
def served(**limits):
    settings = ServiceSettings(port=0, upload_bytes=4 * MB)
    tokens = {ANN: Tenant("ann", quota=Quota(**FAST, **limits))}
    with over_memory(settings, tokens) as service, service.client(ANN) as ann:
        ann.start(SPEC, id="a")
        yield service


@contextlib.contextmanager
def blocked(pool, method, requests):
    """Makes the requests in threads. During the block, none of them returns from `method`."""
    original, gate = pool.call, asyncio.Event()

    async def call(id, asked, **arguments):
        if asked == method:
            pool.calls.append((id, asked, arguments))
            await gate.wait()
        return await original(id, asked, **arguments)

    pool.call = call
    threads = [threading.Thread(target=each, daemon=True) for each in requests]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        pool.call = original
        gate._loop.call_soon_threadsafe(gate.set)
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def under_way(service, method):
    return sum(asked == method for _, asked, _ in service.pool.calls)


def test_a_download_does_not_wait_for_a_command_nor_a_command_for_a_download():
    with served() as service, service.http(ANN) as http:
        service.pool.answers["pack"] = b"archive"

        def run():
            return http.post("/v1/sandboxes/a/run", json={"command": "sleep 1000"}).status_code

        def download():
            return http.get("/v1/sandboxes/a/archive").content

        with blocked(service.pool, "run", [run]):
            wait_until(lambda: under_way(service, "run") == 1)
            assert download() == b"archive"
        with blocked(service.pool, "pack", [download] * 32):
            wait_until(lambda: under_way(service, "pack") == 1 + 32)  # they hold 256 MiB
            assert run() == 200


def test_a_body_of_unknown_length_holds_no_more_than_it_had():
    with served(buffer_mb=7) as service, service.http(ANN) as http:

        def upload():
            http.put("/v1/sandboxes/a/files?path=x", content=iter([bytes(MB), bytes(MB)]))

        with blocked(service.pool, "write", [upload] * 2):
            wait_until(lambda: under_way(service, "write") == 2)


@pytest.mark.heavy
def test_a_real_archive_is_tried_with_more_and_more_room(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(caller, "DOWNLOAD_BYTES", (1 << 16, 1 << 17))
    content = bytes(range(256)) * 1000
    remote.write({"d/f": content})
    remote.download(f"{WORK}/d", tmp_path / "out")
    assert (tmp_path / "out/f").read_bytes() == content
