"""Who may do what, and who only thinks so."""

import dataclasses

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone
from ale_jax.sandbox.service.access import (
    ServiceSettings,
    Tenant,
    Tokens,
    parse_tokens,
    read_tokens,
)
from ale_jax.sandbox.service.app import create_app
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.service.conftest import ANN, BOB, ROOT, over_memory

SECRET = "s" * 16
SPEC = SandboxSpec()


@pytest.mark.parametrize("token", [None, "x", ANN[:-1], ANN + "x", "ann", ANN.upper(), "ä" * 20])
def test_without_a_right_token_nothing_is_told(memory, token):
    with memory.http(None) as http:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        for path in ("/v1/sandboxes", "/v1/sandboxes/x", "/metrics", "/nothing"):
            answer = http.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["kind"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"


def test_the_token_is_looked_at_before_the_body(memory):
    with memory.http(BOB + "x") as http:
        assert http.post("/v1/sandboxes", content=b"x" * 30_000).status_code == 401
    assert memory.pool.members == {}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_token_comes_in_a_header(memory, scheme):
    with memory.http(None) as http:
        for name in ("Authorization", "XRL-Authorization"):
            assert http.get("/v1/nodes", headers={name: f"{scheme} {ANN}"}).status_code == 200


def test_a_token_that_cannot_be_sent_is_not_shown(memory):
    with pytest.raises(ValueError, match="space") as error:
        memory.client(ANN + "\n")
    assert ANN not in str(error.value)


def test_a_token_comes_in_a_url(memory):
    with memory.http(None) as http:
        assert http.get("/v1/nodes", auth=("anybody", ANN)).status_code == 200
        assert http.get("/v1/nodes", auth=(ANN, "")).status_code == 401
        answer = http.get("/v1/nodes", headers={"Authorization": "Basic !!"})
        assert answer.status_code == 401


def test_a_foreign_sandbox_looks_as_if_there_were_none(memory):
    with memory.client(ANN) as ann, memory.http(BOB) as bob:
        box = ann.start(SPEC)
        for method, rest, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/run", {"command": "id"}),
            ("POST", "/exec", {"argv": "id"}),
            ("POST", "/spawn", {"argv": "id"}),
            ("POST", "/sessions", {"name": "s"}),
            ("DELETE", "/sessions/s", None),
            ("POST", "/sessions/s/interrupt", {}),
            ("POST", "/sessions/s/begin", {"command": "id"}),
            ("POST", "/sessions/s/send", {"text": "x"}),
            ("POST", "/sessions/s/expect", {}),
            ("POST", "/reset", None),
            ("POST", "/kill", None),
            ("POST", "/snapshot", None),
            ("POST", "/fork", {}),
            ("POST", "/restore", {"snapshot": "x"}),
            ("GET", "/files?path=x", None),
            ("PUT", "/files?path=x", None),
            ("GET", "/directory", None),
            ("GET", "/archive", None),
        ):
            theirs = bob.request(method, f"/v1/sandboxes/{box.id}{rest}", json=body)
            nobodys = bob.request(method, f"/v1/sandboxes/nobody{rest}", json=body)
            assert theirs.status_code == nobodys.status_code == 404, (method, rest)
            assert theirs.text == nobodys.text.replace("nobody", box.id)
        assert bob.get("/v1/sandboxes").json() == []
        assert memory.pool.calls == [] and box.alive()


def test_an_administrator_sees_all(memory):
    with memory.client(ANN) as ann, memory.client(ROOT) as admin:
        box = ann.start(SPEC)
        (status,) = admin.statuses()
        assert status.id == f"ann~{box.id}"
        assert admin.attach(status.id).run("true").output == "done\n"


def test_what_concerns_all_is_for_administrators(memory):
    with memory.client(BOB) as bob, pytest.raises(PermissionError, match="administrator"):
        bob.warm(SPEC, 1)
    assert memory.pool.calls == []


def test_nobody_starts_under_anothers_name(memory):
    with memory.client(BOB) as bob:
        with pytest.raises(ValueError, match="tenant"):
            bob.start(SPEC, labels={"tenant": "ann"})
        with pytest.raises(ValueError, match="match pattern"):
            bob.start(SPEC, id="ann~mine")
    assert memory.pool.members == {}


def test_no_answer_tells_whether_another_has_that_id(memory):
    """Neither while its sandbox lives nor after its end, nor can anybody keep an id from others."""
    with memory.client(ANN) as ann, memory.client(BOB) as bob:
        box = ann.start(SPEC, id="mine")
        with pytest.raises(SandboxGone):
            bob.attach("mine")
        assert ann.start(SPEC, id="mine").id == "mine"
        with bob.start(SPEC, id="mine") as other:
            assert other.id == "mine" and other.status().labels == {"tenant": "bob"}
        assert box.alive()
        with pytest.raises(SandboxError, match="'mine' is gone: stopped"):
            bob.start(SPEC, id="mine")
        box.close()
        with pytest.raises(SandboxError, match="'mine' is gone: stopped"):
            ann.start(SPEC, id="mine")
    assert memory.pool.members.keys() == {"ann~mine", "bob~mine"}


def test_an_administrator_names_those_of_others(memory):
    with memory.client(ANN) as ann, memory.client(ROOT) as admin:
        ann.start(SPEC, id="x")
        own = admin.start(SPEC, id="x")
        assert {each.id for each in admin.statuses()} == {"x", "ann~x"}
        assert admin.attach("x").status().labels == {"tenant": "root"}
        assert admin.attach("ann~x").run("true").output == "done\n"
        (fork,) = admin.attach("ann~x").fork()
        assert fork.id.startswith("ann~") and own.alive()
        memory.pool.members["warm"] = dataclasses.replace(own.status(), id="warm", labels={})
        for status in admin.statuses():
            assert admin.attach(status.id).alive(), status.id


def test_a_fork_belongs_to_whom_it_was_forked_from(memory):
    with memory.client(ANN) as ann, memory.client(BOB) as bob:
        (fork,) = ann.start(SPEC).fork()
        assert fork.run("true").output == "done\n"
        with pytest.raises(SandboxGone):
            bob.attach(fork.id)


def test_a_terminal_needs_a_token(memory):
    url = memory.url.replace("http", "ws") + "/v1/sandboxes/x/terminal"
    with pytest.raises(InvalidStatus) as refused, connect(url):
        pass
    assert refused.value.response.status_code == 401


def test_what_is_the_same_for_all_is_open(memory):
    with memory.http(None) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").status_code == 200
        memory.pool.node_alive = False
        assert (http.get("/healthz").status_code, http.get("/readyz").status_code) == (200, 503)


@each_row("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_without_tokens_it_serves_only_this_machine(host):
    with pytest.raises(ValueError, match="token"):
        create_app(None, ServiceSettings(host=host))
    create_app(None, ServiceSettings(host=host), Tokens({SECRET: Tenant("x")}))


def test_without_tokens_pages_in_a_browser_are_refused():
    settings = ServiceSettings(port=0)
    with over_memory(settings, {}) as service, service.http(None) as http:
        assert http.get("/v1/nodes").status_code == 200
        local = {"Origin": "http://localhost"}
        assert http.get("/v1/nodes", headers=local).status_code == 200
        for headers in (
            {"Origin": "http:" + "//elsewhere.test"},
            {"Origin": "null"},
            {"Host": "elsewhere.test"},
            {"Host": "127.0.0.1.elsewhere.test:80"},
        ):
            assert http.get("/v1/nodes", headers=headers).status_code == 403, headers


def test_lines_of_tokens():
    tokens = parse_tokens(["# ours", f"ann {SECRET} # hers", "", f"root {SECRET}2 admin"], "file")
    assert tokens.find(SECRET) == Tenant("ann")
    assert tokens.find(SECRET + "2") == Tenant("root", admin=True)
    assert tokens.find("") is None and tokens.find("admin") is None


@each_row(
    "line",
    ["ann", f"ann {SECRET} root", f"ann {SECRET} admin more", "ann short", f"Ann {SECRET}"],
)
def test_a_bad_line_is_named_without_its_token(line):
    with pytest.raises(ValueError, match="file, line 2") as error:
        parse_tokens(["", line], "file")
    assert SECRET not in str(error.value) and "short" not in str(error.value)


def test_two_owners_of_one_token_are_refused():
    with pytest.raises(ValueError, match="same token"):
        parse_tokens([f"ann {SECRET}", f"bob {SECRET}"], "file")


def test_a_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"ann {SECRET}")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_tokens(str(path))
    path.chmod(0o600)
    assert read_tokens(str(path)).find(SECRET) == Tenant("ann")
    path.write_text("# none")
    with pytest.raises(ValueError, match="no token"):
        read_tokens(str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        read_tokens(str(tmp_path / "nothing"))


def test_tokens_of_the_environment():
    tokens = read_tokens(None, {"ALE_SANDBOX_TOKENS": f"ann {SECRET}; root {SECRET}2 admin"})
    assert tokens.find(SECRET + "2") == Tenant("root", admin=True)
    assert not read_tokens(None, {})
