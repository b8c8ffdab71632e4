"""The front for ROCK's clients: the wire as rl-rock 1.11 speaks it."""

import pytest

from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.service.rock import PREFIX
from tests.sandbox.service.conftest import ANN, BOB
from tests.sandbox.service.rock_wire import START, V1, ask, refusal, started, status_of


@pytest.mark.heavy
def test_the_wire(real):
    with real.http() as http:
        id = started(http)
        status = status_of(http, id)["result"]
        assert (status["image"], status["memory"], status["state"]) == (
            *("python:3.11", "96m"),
            "running",
        )
        session = {"sandbox_id": id, "session": "default"}
        made = ask(http, "create_session", **session, session_type="bash", env={"X": "1"})
        assert made["result"]["session_type"] == "bash"
        run = {**session, "check": "raise", "timeout": None, "action_type": "bash"}
        result = ask(http, "run_in_session", **run, command="echo $X; echo")["result"]
        assert (result["output"], result["exit_code"]) == ("1", 0)
        failed = ask(http, "run_in_session", **run, command="ls /nothing")
        assert (failed["status"], failed["result"]["code"]) == ("Failed", 6000)
        assert "No such file" in failed["error"]
        silent = ask(http, "run_in_session", **{**run, "check": "silent"}, command="exit 3")
        assert silent["result"]["exit_code"] == 3
        late = ask(http, "run_in_session", **{**run, "timeout": 0.2}, command="sleep 60")
        assert "Command execution failed due to timeout" in late["error"]
        # What its client makes of mode="nohup".
        soon = "true & wait; echo PIDSTART${!}PIDEND;disown"
        assert "PIDSTART" in ask(http, "run_in_session", **run, command=soon)["result"]["output"]
        late = "nohup echo late < /dev/null > /tmp/o 2>&1 & echo PIDSTART${!}PIDEND;disown"
        output = ask(http, "run_in_session", **run, command=late)["result"]["output"]
        pid = output.removeprefix("PIDSTART").removesuffix("PIDEND")
        while ask(http, "run_in_session", **run, command=f"kill -0 {pid}")["status"] == "Success":
            pass
        assert (
            ask(http, "run_in_session", **run, command="cat /tmp/o")["result"]["output"] == "late"
        )
        words = {"command": ["pwd"], "timeout": 1200, "cwd": "/tmp", "env": None}
        done = ask(http, "execute", sandbox_id=id, **words)["result"]
        assert done == {"stdout": "/tmp\n", "stderr": "", "exit_code": 0}
        path = "/tmp/d e/ä.txt"
        ask(http, "write_file", sandbox_id=id, path=path, content="ü\n")
        text = {"path": path, "encoding": None, "errors": None}
        assert ask(http, "read_file", sandbox_id=id, **text)["result"] == {"content": "ü\n"}
        form = {"sandbox_id": id, "target_path": "/tmp/up"}
        answer = http.post(f"{V1}/upload", data=form, files={"file": ("x", b"\0\xff\r\n")})
        assert answer.json()["status"] == "Success"
        size = ask(http, "execute", sandbox_id=id, command="wc -c < /tmp/up")["result"]
        assert size["stdout"].strip() == "4"
        assert ask(http, "close_session", **session)["status"] == "Success"
        assert ask(http, "run_in_session", **run, command="true")["status"] == "Failed"
        assert ask(http, "stop", sandbox_id=id)["status"] == "Success"
        assert status_of(http, id)["result"]["is_alive"] is False
        assert ask(http, "delete", sandbox_id=id)["status"] == "Success"


def test_what_is_not_granted_is_a_bad_request(rocky):
    with rocky.http() as http:
        assert "cpus 20" in refusal(ask(http, "start_async", **START | {"cpus": 20}))
    assert rocky.pool.members == {}


@pytest.mark.parametrize(
    ("error", "phase", "told"),
    [
        (ImageMissing("x is not here"), "image_pull", "Failed to pull image python:3.11"),
        (SandboxStartError("the image holds more"), "docker_run", "the image holds more"),
    ],
)
def test_a_start_that_failed_says_in_which_phase(rocky, error, phase, told):
    rocky.pool.start_error = error
    with rocky.http() as http:
        id = ask(http, "start_async", **START)["result"]["sandbox_id"]
        status = status_of(http, id)["result"]
        assert status["status"][phase]["status"] == "failed" and status["state"] == "stopped"
        assert told in status["status"][phase]["message"]
        with rocky.http(BOB) as bob:
            assert "there is no sandbox" in status_of(bob, id)["error"]


def test_a_foreign_one_looks_as_if_there_were_none(rocky):
    with rocky.http(ANN) as ann, rocky.http(BOB) as bob:
        id = started(ann)
        for path in ("stop", "delete", "restart", "commit"):
            theirs, nobodys = (ask(bob, path, sandbox_id=each) for each in (id, "nobody"))
            assert refusal(theirs) == refusal(nobodys).replace("nobody", id)
        assert status_of(bob, id)["status"] == "Failed"
        assert status_of(ann, id)["result"]["is_alive"] is True
        assert "is in use" in refusal(ask(ann, "start_async", **START | {"sandbox_id": id}))
        batch = {"sandbox_ids": [id, "nobody"]}
        found = [ask(who, "sandboxes/batch", **batch)["result"]["statuses"] for who in (ann, bob)]
        assert [[each["sandbox_id"] for each in statuses] for statuses in found] == [[id], []]
        assert ask(bob, "start_async", **START | {"sandbox_id": id})["status"] == "Success"
        ask(bob, "delete", sandbox_id=id)
        assert status_of(ann, id)["result"]["is_alive"] is True


SANDBOX_PATHS = (
    *("stop", "delete", "restart", "execute", "create_session", "run_in_session", "close_session"),
    *("read_file", "write_file", "upload", "commit"),
)


@pytest.mark.parametrize("body", [{}, {"sandbox_id": 5}, {"sandbox_id": None}])
def test_a_request_without_sense_is_a_bad_request(rocky, body):
    with rocky.http() as http:
        for path in SANDBOX_PATHS:
            assert "sandbox_id" in refusal(ask(http, path, **body)), path
        assert "sandbox_id" in refusal(http.get(f"{V1}/get_status").json())
        assert "object" in refusal(http.post(f"{V1}/stop", json=[]).json())


def test_what_is_not_offered_says_what_is(rocky):
    with rocky.http() as http:
        id = started(http)
        assert "snapshot" in refusal(ask(http, "commit", sandbox_id=id, image_tag="x"))
        assert "snapshot" in refusal(http.get(f"{V1}/commit/{id}").json())
        assert "snapshot" in refusal(ask(http, f"sandboxes/{id}/archive"))
        assert "upload" in refusal(http.get(f"{V1}/get_token?account=primary").json())


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"encoding": "punycode"}, "encoding"), ({"errors": "xmlcharrefreplace"}, "errors")],
)
def test_decoders_that_could_keep_the_service_busy_are_refused(rocky, fields, told):
    with rocky.http() as http:
        id = started(http)
        assert told in refusal(ask(http, "read_file", sandbox_id=id, path="x", **fields))


def test_a_file_is_read_whole_or_not_at_all(rocky):
    with rocky.http() as http:
        id = started(http)
        rocky.pool.answers["read"] = lambda id, arguments: b"x" * arguments["max_bytes"]
        assert "more than" in refusal(ask(http, "read_file", sandbox_id=id, path="big"))
        rocky.pool.answers["read"] = b"\xff"
        assert "decode" in refusal(ask(http, "read_file", sandbox_id=id, path="bytes"))
        text = ask(http, "read_file", sandbox_id=id, path="bytes", errors="replace")
        assert text["result"] == {"content": "\ufffd"}


def test_the_prefix_is_rocks():
    assert PREFIX == V1
