"""Whose sandbox an id is, where several front ends stand before one pool."""

import asyncio

import pytest

from ale_jax.sandbox.pool.api import SandboxGone, StartRequest
from ale_jax.sandbox.service.access import Tenant
from ale_jax.sandbox.service.caller import OWNER_S, Caller, Owners
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.tenants import DEFAULT_QUOTA, TenantAccount, Ticket
from tests.sandbox.pool.fakes import SPEC, Clock, FakeRuntime, HandPool, in_a_loop

REQUEST = StartRequest(SPEC, id="x")


def caller(pool, owners, name):
    account = TenantAccount(name, DEFAULT_QUOTA, shares=False)
    return Caller(pool, owners, Tenant(name), Ticket(account))


@in_a_loop
async def test_an_id_that_another_tenant_took_elsewhere_is_no_longer_ones_own():
    async with HandPool(FakeRuntime("fail", "ok")) as pool:
        clock = Clock()
        here, elsewhere = (Owners(pool, clock) for _ in range(2))
        ann, bob = caller(pool, here, "ann"), caller(pool, elsewhere, "bob")
        with pytest.raises(Exception, match="no such image"):
            await ann.start(REQUEST)
        assert (await ann.status("x")).cause == "start_failed"  # ann's front end knows it as hers
        pool._lifecycle.sandboxes.clear()  # as when it was forgotten
        await bob.start(REQUEST)
        with pytest.raises(Refusal):
            await ann.call("x", "run", command="true")
        await bob.call("x", "run", command="true")


@in_a_loop
async def test_the_owner_of_a_living_sandbox_is_asked_for_now_and_then_only():
    async with HandPool(FakeRuntime()) as pool:
        asked, status = [], pool.status

        async def counted(id):
            asked.append(id)
            return await status(id)

        pool.status, clock = counted, Clock()
        ann = caller(pool, Owners(pool, clock), "ann")
        await ann.start(REQUEST)
        before = len(asked)
        await asyncio.gather(*(ann.call("x", "run", command="true") for _ in range(9)))
        assert len(asked) == before
        clock.now += OWNER_S + 1
        await ann.call("x", "run", command="true")
        assert len(asked) == before + 1


@in_a_loop
async def test_what_the_pool_has_forgotten_is_gone_for_its_owner_and_unknown_to_others():
    async with HandPool(FakeRuntime()) as pool:
        owners = Owners(pool, clock := Clock())
        ann, bob = (caller(pool, owners, name) for name in ("ann", "bob"))
        await ann.start(REQUEST)
        await ann.stop("x")
        pool._lifecycle.sandboxes.clear()
        clock.now += OWNER_S + 1
        with pytest.raises(SandboxGone):
            await ann.call("x", "run", command="true")
        with pytest.raises(Refusal):
            await bob.call("x", "run", command="true")
