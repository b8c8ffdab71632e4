"""The front for ROCK's clients: the wire as rl-rock 1.11 speaks it, and that package itself."""

import os
import subprocess
from pathlib import Path

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.service import rock
from ale_jax.sandbox.service.rock_spec import RockOptions, megabytes, start_request
from tests.sandbox.service.conftest import ANN, BOB, over_memory

V1 = "/apis/envs/sandbox/v1"
SDK = Path(os.environ.get("ALE_ROCK_VENV", "/tmp/rock-venv"), "bin/python")
START = {
    **{"image": "python:3.11", "image_os": "linux", "memory": "96m", "cpus": 1, "disk": "8m"},
    **{"auto_clear_time": 5, "auto_clear_time_minutes": 5, "startup_timeout": 180},
    **{"num_gpus": None, "accelerator_type": None, "registry_username": None},
    **{"registry_password": None, "use_kata_runtime": False, "limit_cpus": None},
    **{"sandbox_id": None, "auto_archive_seconds": None, "auto_delete_seconds": None},
}


@pytest.fixture
def rocky():
    with over_memory(fronts=[rock.front()]) as service:
        yield service


def ask(http, path, /, **body):
    answer = http.post(f"{V1}/{path}", json=body)
    assert answer.status_code == 200
    return answer.json()


def status_of(http, id):
    path = f"{V1}/get_status?sandbox_id={id}&include_all_states=False"
    return http.get(path).json()


def started(http):
    id = ask(http, "start_async", **START)["result"]["sandbox_id"]
    while not (status := status_of(http, id)["result"])["is_alive"]:
        assert "failed" not in str(status["status"]), status
    return id


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


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"cpus": 20}, "cpus 20 must be"),
        ({"limit_cpus": 17}, "cpus 17 must be"),
        ({"memory": "65g"}, "memory '65g' is more than"),
        ({"memory": "much"}, "memory 'much' must be a size"),
        ({"disk": "1t"}, "disk '1t' is more than"),
        ({"num_gpus": 1}, "no GPU"),
        ({"registry_username": "me"}, "not pulled"),
        ({"image_os": "windows"}, "only linux"),
        ({"image": "NO image"}, "not a name"),
        ({"image": ""}, "image"),
        ({"privileged": True}, "privileged"),
    ],
)
def test_what_is_not_granted_is_a_bad_request(rocky, asked, told):
    with rocky.http() as http:
        answer = ask(http, "start_async", **START | asked)
    assert answer["status"] == "Failed" and answer["result"]["code"] == 4000
    assert told in answer["error"] and rocky.pool.members == {}


@pytest.mark.parametrize(
    ("error", "phase", "told"),
    [
        ("404: No such image: x", "image_pull", "Failed to pull image python:3.11"),
        ("no runner within 30 s", "docker_run", "no runner"),
    ],
)
def test_a_start_that_failed_says_in_which_phase(rocky, error, phase, told):
    rocky.pool.start_error = SandboxStartError(error)
    with rocky.http() as http:
        id = ask(http, "start_async", **START)["result"]["sandbox_id"]
        phases = status_of(http, id)["result"]["status"]
        while phases[phase]["status"] != "failed":
            phases = status_of(http, id)["result"]["status"]
        assert told in phases[phase]["message"]
        with rocky.http(BOB) as bob:
            assert "there is no sandbox" in status_of(bob, id)["error"]


def test_a_foreign_one_looks_as_if_there_were_none(rocky):
    with rocky.http(ANN) as ann, rocky.http(BOB) as bob:
        id = started(ann)
        for path in ("stop", "delete", "restart"):
            theirs, nobodys = (ask(bob, path, sandbox_id=each) for each in (id, "nobody"))
            assert theirs["status"] == "Failed"
            assert theirs["error"] == nobodys["error"].replace("nobody", id)
        assert status_of(bob, id)["status"] == "Failed"
        assert status_of(ann, id)["result"]["is_alive"] is True
        taken = ask(bob, "start_async", **START | {"sandbox_id": id})["result"]["sandbox_id"]
        assert taken == id and "is taken" in str(status_of(bob, id)["result"])


@pytest.mark.parametrize("body", [{}, {"sandbox_id": 5}, {"sandbox_id": None}])
def test_a_request_without_sense_is_a_bad_request(rocky, body):
    with rocky.http() as http:
        for path in rock.POSTS[1:]:
            assert ask(http, path, **body)["result"]["code"] == 4000, path


def test_a_spec_of_rocks():
    request = start_request(START | {"memory": "8g", "disk": "50G", "cpus": 2}, "x", RockOptions())
    spec = request.spec
    assert (spec.image, spec.user, spec.cpus, spec.memory_mb) == ("ale-shell", "root", 2.0, 8192)
    assert (spec.files_mb, request.idle_seconds, request.id) == (8192, 300.0, "x")
    kata = start_request({"image": "x", "use_kata_runtime": True, "pull": None}, "", RockOptions())
    assert (kata.spec.runtime, kata.spec.image, kata.idle_seconds) == ("kata", "x", 21_600.0)


@pytest.mark.parametrize(
    ("text", "size"), [("8g", 8192), ("0.5G", 512), ("512m", 512), ("1048577", 2), ("2GiB", 2048)]
)
def test_sizes(text, size):
    assert megabytes("memory", text, 1 << 20) == size


PROGRAM = """
import asyncio, sys
from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest
from rock.sdk.common.exceptions import BadRequestRockError, InternalServerRockError
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig

def box(**asked):
    headers = {"Authorization": "Bearer " + sys.argv[2]}
    limits = {"memory": "96m", "cpus": 1, "disk": "8m"}
    return Sandbox(SandboxConfig(base_url=sys.argv[1], extra_headers=headers, **limits | asked))

async def main():
    one = box()
    await one.start()
    assert await one.is_alive()
    assert (await one.execute(Command(command=["pwd"], cwd="/tmp"))).stdout == "/tmp\\n"
    await one.create_session(CreateBashSessionRequest(session="default"))
    await one.arun("X=5", session="default")
    assert (await one.arun("echo $X", session="default")).output == "5"
    assert (await one.write_file_by_path("text", "/tmp/d/x")).success
    assert (await one.read_file(ReadFileRequest(path="/tmp/d/x"))).content == "text"
    try:
        await one.arun("ls /nothing", session="default")
    except Exception as error:
        assert "No such file" in str(error)
    else:
        raise AssertionError("a failing command raises there")
    await one.stop()
    assert not await one.is_alive()
    try:
        await box(cpus=20).start()
    except BadRequestRockError:
        print("all is well")

asyncio.run(main())
"""


def test_rocks_own_package_works_unmodified(real):
    if not SDK.exists():
        pytest.skip(
            f"rl-rock: type python3 -m venv {SDK.parents[1]}"
            f" && {SDK.parent}/pip install rl-rock==1.11.0"
        )
    done = subprocess.run(
        [SDK, "-c", PROGRAM, real.url, ANN], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.endswith("all is well\n"), done.stderr[-4000:]
