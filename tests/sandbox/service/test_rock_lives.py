"""Stop, restart and delete as ROCK has them, over a pool that uses no id twice."""

import math

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, StartRequest
from ale_jax.sandbox.service import rock
from ale_jax.sandbox.service.access import Tenant
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.rock_sandboxes import RockSandbox, RockSandboxes
from ale_jax.sandbox.service.rock_spec import RockOptions
from ale_jax.sandbox.service.tenants import Quota, TenantAccount, Ticket
from ale_jax.sandbox.spec import WORK, SandboxSpec
from tests.sandbox.service.conftest import over_memory
from tests.sandbox.service.rock_wire import (
    ask,
    refusal,
    started,
    status_of,
    until_alive,
)


def output(http, id, command):
    done = ask(http, "execute", sandbox_id=id, command=command)
    return done["result"]["stdout"]


def stopped(http, id):
    assert ask(http, "stop", sandbox_id=id)["status"] == "Success"
    assert status_of(http, id)["result"]["state"] == "stopped"


@pytest.mark.heavy
def test_a_restart_brings_the_files_back_under_the_same_id(real):
    with real.http() as http:
        id = started(http)
        output(
            http, id, f"echo 1 > {WORK}/a; mkdir -m 700 /opt/d; echo 2 > /opt/d/b; echo 3 > /etc/c"
        )
        for _ in range(2):
            stopped(http, id)
            assert ask(http, "restart", sandbox_id=id)["result"]["sandbox_id"] == id
            until_alive(http, id)
            found = output(http, id, f"cat {WORK}/a /opt/d/b /etc/c; stat -c %a /opt/d")
            assert found == "1\n2\n3\n700\n"
        session = {"sandbox_id": id, "session": "default"}
        assert ask(http, "create_session", **session)["status"] == "Success"
        assert ask(http, "delete", sandbox_id=id)["status"] == "Success"


@pytest.mark.parametrize(
    ("asked", "quota", "limit"),
    [
        (60.0, Quota(idle_seconds=100.0), 60.0),
        (0.0, Quota(idle_seconds=100.0), 100.0),  # as the pool has it
        (None, Quota(idle_seconds=100.0), 100.0),  # it was not started here
        (60.0, Quota(idle_seconds=math.inf), 60.0),
        (0.0, Quota(idle_seconds=math.inf), 0.0),
        (None, Quota(idle_seconds=math.inf), 0.0),
    ],
)
def test_a_model_service_may_be_idle_for_as_long_as_the_token_permits(asked, quota, limit):
    sandboxes, ann = RockSandboxes(), TenantAccount("ann", quota, shares=False)
    by = Caller(None, Tenant("ann", quota=quota), Ticket(ann))
    if asked is not None:
        request = StartRequest(SandboxSpec(), id="a", idle_seconds=asked)
        sandboxes._known["ann~a"] = RockSandbox(request, "ann~a", None, 0.0)
    assert sandboxes.idle_seconds(by, "a") == limit


def test_what_runs_is_not_restarted(rocky):
    with rocky.http() as http:
        assert "stop it first" in refusal(ask(http, "restart", sandbox_id=started(http)))


def test_what_cannot_give_its_files_is_stopped_all_the_same(rocky):
    rocky.pool.answers["snapshot"] = SandboxError("too much")
    with rocky.http() as http:
        id = started(http)
        stopped(http, id)
        assert "were kept: too much" in refusal(ask(http, "restart", sandbox_id=id))


def test_what_ended_by_itself_has_left_nothing(rocky):
    with rocky.http() as http:
        id = started(http)
        rocky.pool.end(f"ann~{id}", Cause.IDLE)
        assert "not stopped by a request" in refusal(ask(http, "restart", sandbox_id=id))


@pytest.mark.parametrize(
    ("keep_seconds", "auto_delete_seconds"), [(0.0, None), (0.0, 60), (60.0, 0)]
)
def test_files_are_kept_for_a_time(keep_seconds, auto_delete_seconds):
    options = RockOptions(keep_seconds=keep_seconds)
    with over_memory(fronts=[rock.front(options)]) as service, service.http() as http:
        id = started(http, auto_delete_seconds=auto_delete_seconds)
        stopped(http, id)
        assert "kept for only 0 s" in refusal(ask(http, "restart", sandbox_id=id))


def test_a_restart_that_fails_can_be_asked_for_again(rocky):
    with rocky.http() as http:
        id = started(http)
        stopped(http, id)
        rocky.pool.start_error = SandboxStartError("no room")
        ask(http, "restart", sandbox_id=id)
        assert "no room" in str(status_of(http, id)["result"]["status"])
        rocky.pool.start_error = None
        ask(http, "restart", sandbox_id=id)
        until_alive(http, id)
        rocky.pool.end(next(reversed(rocky.pool.members)), Cause.IDLE)
        assert "not stopped by a request" in refusal(ask(http, "restart", sandbox_id=id))


def test_a_deleted_one_is_gone_and_its_id_is_free(rocky):
    with rocky.http() as http:
        id = started(http)
        for _ in range(2):
            assert ask(http, "delete", sandbox_id=id)["status"] == "Success"
        for path in ("stop", "restart", "execute"):
            told = refusal(ask(http, path, sandbox_id=id, command="true"))
            assert "there is no sandbox" in told, path
        assert "there is no sandbox" in refusal(status_of(http, id))
        assert started(http, sandbox_id=id) == id
        assert [each.cause for each in rocky.pool.members.values()] == [Cause.STOPPED, None]


def test_the_other_front_sees_it_too(rocky):
    with rocky.http() as http:
        id = http.post("/v1/sandboxes", json={}).json()["id"]
        assert status_of(http, id)["result"]["is_alive"]
        assert "not started by ROCK" in refusal(ask(http, "restart", sandbox_id=id))
        stopped(http, id)
