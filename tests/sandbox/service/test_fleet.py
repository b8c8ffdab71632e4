"""What the page of the fleet is made of, and what it is told."""

import base64
import hashlib
import re

import pytest

from ale_jax.sandbox.api import SandboxStats
from ale_jax.sandbox.pool.api import Cause, Change, State, Status
from ale_jax.sandbox.service.operations import ENDED_SHOWN, sandbox_rows
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, ROOT


def status(id="a", state=State.RUNNING, cause=None, history=(), labels=None, **more):
    head = (id, "node", "memory", state, cause, 0, 0, 5.0, 5.0, SPEC)
    return Status(*head, labels=labels or {}, history=tuple(history), **more)


def row_of(one: Status) -> dict:
    (row,) = sandbox_rows([one])["rows"]
    return row


def test_all_that_live_are_shown_and_the_last_that_ended():
    ended = [
        status(f"e{n}", State.STOPPED, Cause.IDLE, [Change(float(n), State.STOPPED, "")])
        for n in range(ENDED_SHOWN + 5)
    ]
    living = [status(f"l{n}") for n in range(3)]
    answer = sandbox_rows([*ended, *living])
    ids = [row["id"] for row in answer["rows"]]
    newest = [f"e{n}" for n in range(ENDED_SHOWN + 4, 4, -1)]
    assert ids == ["l0", "l1", "l2", *newest]
    assert answer["states"] == {"running": 3, "stopped": ENDED_SHOWN + 5}


def test_why_is_the_reason_of_the_end_or_of_the_last_loss():
    begin = [Change(1.0, State.PENDING, ""), Change(2.0, State.RUNNING, "")]
    lost = [Change(3.0, State.FAILED, "it died"), Change(3.0, State.PENDING, "generation 1")]
    assert row_of(status(history=begin))["why"] == ""
    assert row_of(status(history=begin + lost))["why"] == "it died"
    over = status(state=State.STOPPED, cause=Cause.DEADLINE)
    assert row_of(over)["cause"] == "deadline"


def test_ages_are_of_the_life_or_since_its_end():
    change = Change(9.0, State.STOPPED, "")
    assert row_of(status(history=[Change(7.0, State.RUNNING, "")]))["since"] == 5.0
    assert row_of(status("a", State.STOPPED, Cause.IDLE, [change]))["since"] == 9.0


def test_what_others_wrote_is_short():
    labels = {f"{n}{'k' * 500}": "v" * 500 for n in range(100)}
    history = [Change(1.0, State.FAILED, "w" * 5000)]
    row = row_of(status(labels=labels, history=history))
    assert len(str(row)) < 3000 and row["why"] == "w" * 240


def test_usage():
    stats = SandboxStats(3, 1 << 20, 1 << 24, 7.0, 1 << 22)
    row = row_of(status(stats=stats, cpu_percent=40.0))
    known = {name: row[name] for name in ("processes", "disk_bytes", "disk_limit_bytes")}
    assert known == {"processes": 3, "disk_bytes": 1 << 20, "disk_limit_bytes": 1 << 24}
    assert (row["memory_bytes"], row["cpu_percent"]) == (1 << 22, 40.0)
    assert row["memory_limit_bytes"] == SPEC.memory_mb << 20
    assert row_of(status())["processes"] is None


def test_everybody_sees_their_own(memory):
    for token, id in ((ANN, "ann"), (BOB, "bob")):
        with memory.client(token) as client:
            client.start(SPEC, id=id)
        memory.pool.ring.record("sandbox_started", "", sandbox=f"{id}~{id}")
    for token, mine in ((ANN, ["ann"]), (BOB, ["bob"]), (ROOT, ["ann~ann", "bob~bob"])):
        with memory.http(token) as http:
            answer = http.get("/v1/fleet").json()
            assert [row["id"] for row in answer["sandboxes"]["rows"]] == mine
            assert [event["sandbox"] for event in answer["events"]["events"]] == mine
            assert [node["node"] for node in answer["nodes"]] == ["here"]
            later = http.get("/v1/fleet", params={"after": answer["events"]["next"]}).json()
            assert later["events"]["events"] == []


@pytest.fixture
def page(memory):
    with memory.http(None) as http:  # it shows nothing by itself
        return http.get("/fleet")


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_brings_all_that_it_needs_and_runs_nothing_else(page):
    policy = dict(
        rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";")
    )
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.S)
    assert "KeyedList" in script and "grid-template" in style
    assert policy == {
        "default-src": "'none'",
        "style-src": hash_of(style),
        "script-src": hash_of(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert "//" not in re.sub(r"^\s*//.*$|\s// .*$", "", page.text, flags=re.M)  # no address


def test_no_part_of_the_page_makes_html_of_text(page):
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", page.text)
