"""Data sets that an operator gives to a token, and refuses to the others."""

import pytest

from ale_jax.sandbox.service.access import Tenant, parse_tokens
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.service.conftest import ANN, BOB, ROOT, SMALL, over_memory

SECRET = "s" * 16
GIVEN = frozenset(("wiki", "code.v2"))


def asking(*names):
    return {"spec": SandboxSpec(datasets=names).to_json()}


def test_a_line_gives_data_sets():
    lines = [f"ann {SECRET} datasets=wiki,code.v2 cpus=2", f"bob {SECRET}2 datasets=wiki admin"]
    ann = parse_tokens(lines[:1], "file").find(SECRET)
    assert ann.datasets == GIVEN and ann.quota.cpus == 2.0
    with pytest.raises(ValueError, match="'admin': choose among"):  # it comes first, as ever
        parse_tokens(lines, "file")
    assert parse_tokens([f"ann {SECRET}"], "file").find(SECRET).datasets == frozenset()


@each_row(
    "line, told",
    [
        (f"ann {SECRET} datasets=", "must be names of data sets"),
        (f"ann {SECRET} datasets=wiki,,x", "must be names of data sets"),
        (f"ann {SECRET} datasets=wiki=/srv", "must be names of data sets"),
        (f"ann {SECRET} datasets=/srv/wiki", "must be names of data sets"),
        (f"bob {SECRET}3 datasets=wiki", "another token of 'bob' has other limits"),
        ("* datasets=wiki", "choose among"),  # given to each by name
    ],
)
def test_a_line_that_gives_none_is_explained(line, told):
    with pytest.raises(ValueError, match=told) as caught:
        parse_tokens([f"bob {SECRET}2", line], "file")
    assert SECRET not in str(caught.value)


def test_a_tenant_gets_what_was_given_to_it_and_learns_nothing_of_others():
    tokens = {
        ANN: Tenant("ann", datasets=GIVEN),
        BOB: Tenant("bob"),
        ROOT: Tenant("root", admin=True),
    }
    with over_memory(SMALL, tokens) as service:
        started = lambda token, *names: _start(service, token, asking(*names))  # noqa: E731
        for token, names in ((ANN, GIVEN), (ANN, ()), (ROOT, ("wiki", "x")), (BOB, ())):
            assert started(token, *names).status_code == 201
        lived = len(service.pool.members)
        for token, names in ((BOB, ("wiki",)), (BOB, ("none",)), (ANN, ("wiki", "secrets"))):
            answer = started(token, *names)
            message = answer.json()["error"]["message"]
            assert answer.status_code == 403
            assert message == f"the data set {names[-1]!r} is not given to this token"
        with service.http(BOB) as http:
            several = http.post("/v1/sandboxes/many", json=asking("wiki") | {"count": 1})
            assert several.status_code == 403
        assert len(service.pool.members) == lived


def _start(service, token, body):
    with service.http(token) as http:
        return http.post("/v1/sandboxes", json=body)


def test_what_was_taken_back_is_not_forked():
    tokens = {ANN: Tenant("ann", datasets=GIVEN), BOB: Tenant("ann")}
    with over_memory(SMALL, tokens) as service:
        id = _start(service, ANN, asking("wiki")).json()["id"]
        for token, code in ((ANN, 201), (BOB, 403)):
            with service.http(token) as http:
                assert http.post(f"/v1/sandboxes/{id}/fork", json={"count": 1}).status_code == code


def test_without_tokens_whoever_is_on_this_machine_may_use_them_all():
    with over_memory(SMALL, {}) as service:
        assert _start(service, None, asking("wiki")).status_code == 201
