"""launch/tpu_pod.py with a stand-in for gcloud, launch/tpu_worker.sh with those of a host."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.commands_on_path import CommandsOnPath

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LINE = ["--config=configs/smoke.py", """--config.name=it's "one" $(touch stolen) `x`; &"""]
DEADLINE_S = 60.0  # only against a hang
OPTIONS = [
    *("--zone=z", "--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e", "--spot"),
    *("--service-account=a@b", "--share=10.0.0.2:/runs", "--poll-s=0"),
]
# The zone: a slice that is requested becomes active, after it was waited for as often as the file
# `waits` says; each training ends with the next exit code and state of the file `ends`.
GCLOUD = """
state = here / "state"
known = state.read_text() if state.exists() else ""
words = set(arguments)
if {"queued-resources", "list"} <= words:
    print(known)
    if known.startswith("WAITING"):
        state.write_text("ACTIVE")
elif "create" in words:
    assert not known, known
    state.write_text((here / "created").read_text())
elif "delete" in words:
    assert known
    state.write_text("")
elif words & {"scp", "ssh"}:
    if known != "ACTIVE":
        sys.exit(255)
    if any("tpu_worker.sh train" in word for word in words):
        (code, known), *rest = json.loads((here / "ends").read_text())
        (here / "ends").write_text(json.dumps(rest))
        state.write_text(known)
        sys.exit(code)
"""


@pytest.fixture
def zone(tmp_path):
    """Calls launch/tpu_pod.py in a zone where training ends as `ends` says."""
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("gcloud", GCLOUD)
    commands.add("git")

    def call(*arguments, ends=(), state="", created="WAITING_FOR_RESOURCES"):
        for name, text in (("ends", json.dumps(ends)), ("state", state), ("created", created)):
            (commands.folder / name).write_text(text)
        line = [sys.executable, ROOT / "launch/tpu_pod.py", *arguments]
        return subprocess.run(
            line, env=commands.environment, capture_output=True, text=True, timeout=DEADLINE_S
        )

    call.commands = commands
    return call


def actions(calls):
    """What each call was about."""
    told = {"list": "look", "create": "request", "delete": "delete", "scp": "copy"}
    found = []
    for name, *words in calls:
        if name == "git":
            found.append("archive")
        elif "ssh" in words:
            found.append("train" if "tpu_worker.sh train" in words[-1] else "install")
        else:
            found.append(next(told[word] for word in words if word in told))
    return found


PREPARE = ["archive", "copy", "install"]
FROM_NOTHING = ["look", "request", "look", "look", *PREPARE, "train"]


def test_a_preempted_slice_is_requested_again_and_gets_the_same_line(zone):
    done = zone("train", "p", *OPTIONS, "--", *LINE, ends=[(255, "SUSPENDED"), (0, "ACTIVE")])
    assert done.returncode == 0, done.stderr
    calls = zone.commands.calls()
    again = ["look", "delete", "request", "look", "look", *PREPARE, "train"]
    assert actions(calls) == [*FROM_NOTHING, *again]
    lines = [call for call in calls if "tpu_worker.sh train" in call[-1]]
    assert len(lines) == 2 and lines[0] == lines[1]


def test_a_slice_that_is_there_is_used(zone):
    done = zone("train", "p", *OPTIONS, "--", *LINE, ends=[(0, "ACTIVE")], state="ACTIVE")
    assert done.returncode == 0
    assert actions(zone.commands.calls()) == ["look", *PREPARE, "train"]


@pytest.mark.parametrize("code", [1, 2])
def test_what_would_fail_again_ends_it_if_the_slice_is_whole(zone, code):
    done = zone("train", "p", *OPTIONS, "--", *LINE, ends=[(code, "ACTIVE")], state="ACTIVE")
    assert done.returncode == code
    assert actions(zone.commands.calls()).count("train") == 1


def test_processes_that_lost_one_to_a_preemption_are_started_again(zone):
    ends = [(2, "SUSPENDING"), (130, "SUSPENDED"), (130, "ACTIVE"), (0, "ACTIVE")]
    done = zone("train", "p", *OPTIONS, "--", *LINE, ends=ends)
    assert done.returncode == 0
    assert actions(zone.commands.calls()).count("train") == 4


def test_restarts_are_limited(zone):
    ends = [(130, "SUSPENDED")] * 3
    done = zone("train", "p", *OPTIONS, "--restarts=1", "--", *LINE, ends=ends)
    assert done.returncode == 130
    assert actions(zone.commands.calls()).count("train") == 2


def test_a_request_that_fails_is_not_repeated(zone):
    done = zone("train", "p", *OPTIONS, "--", *LINE, created="FAILED")
    assert done.returncode == 1 and "the request failed" in done.stderr
    assert actions(zone.commands.calls()) == ["look", "request", "look"]


def test_stop_and_delete(zone):
    assert zone("stop", "p", "--zone=z", state="ACTIVE").returncode == 0
    assert zone("delete", "p", "--zone=z", state="ACTIVE").returncode == 0
    stop, delete = zone.commands.calls()
    assert stop[-1] == "--command=sudo systemctl stop ale-jax" and "--worker=all" in stop
    assert {"delete", "p", "--zone=z", "--force", "--quiet"} <= set(delete)


def test_a_dry_run_prints_the_commands_of_an_undisturbed_run_and_runs_none(zone):
    dry = zone("train", "p", *OPTIONS, "--dry-run", "--", *LINE)
    assert dry.returncode == 0 and zone.commands.calls() == []
    zone("train", "p", *OPTIONS, "--", *LINE, ends=[(0, "ACTIVE")], created="ACTIVE")

    def without_folder(words):
        return [re.sub(r"/\S*/ale-jax\.tar\.gz", "ARCHIVE", word) for word in words]

    printed = [shlex.split(line[2:]) for line in dry.stdout.splitlines() if line[:2] == "+ "]
    assert [without_folder(words) for words in printed] == [
        without_folder(words) for words in zone.commands.calls()
    ]
    assert actions(printed) == ["look", "request", "look", *PREPARE, "train"]
    for action in ("stop", "delete"):
        dry = zone(action, "p", "--zone=z", "--dry-run")
        assert dry.returncode == 0 and dry.stdout.startswith("+ gcloud ")
    assert len(zone.commands.calls()) == len(printed)


def test_the_arguments_reach_a_host_as_they_were_given(zone, tmp_path):
    zone("train", "p", *OPTIONS, "--", *LINE, ends=[(0, "ACTIVE")], state="ACTIVE")
    *_, train = zone.commands.calls()
    host = CommandsOnPath(tmp_path / "ale-jax")
    (host.folder / "launch").mkdir()
    host.add("launch/tpu_worker.sh")
    remote = train[-1].removeprefix("--command=")
    subprocess.run(["sh", "-c", remote], cwd=tmp_path, check=True)
    assert host.calls() == [["tpu_worker.sh", "train", *LINE]]
    assert not (tmp_path / "stolen").exists()


# A host: systemd-run starts a unit that is active once and then ends with the code of `end`.
SUDO = "sys.exit(subprocess.run(arguments).returncode)"
SYSTEMD_RUN = """
(here / "ActiveState").write_text("active")
(here / "ale-jax.log").write_text("one\\ntwo\\nthree\\nfour\\n")
"""
SYSTEMCTL = """
if arguments[0] == "show":
    wanted = arguments[1].removeprefix("--property=")
    file = here / wanted
    print(file.read_text() if file.exists() else "inactive")
    if wanted == "ActiveState" and file.exists():
        file.write_text("failed")
"""
CURL = """
print({"agent-worker-number": "1", "worker-network-endpoints": (here / "endpoints").read_text()}[
    arguments[-1].rpartition("/")[2]])
"""


@pytest.fixture
def host(tmp_path):
    """Calls launch/tpu_worker.sh on the second of two hosts, where training ends with `code`."""
    commands = CommandsOnPath(tmp_path / "bin")
    for name, body in (
        ("sudo", SUDO),
        ("systemd-run", SYSTEMD_RUN),
        ("systemctl", SYSTEMCTL),
        ("curl", CURL),
        ("sleep", ""),
    ):
        commands.add(name, body)

    def call(endpoints, code):
        (commands.folder / "endpoints").write_text(endpoints)
        (commands.folder / "ExecMainStatus").write_text(str(code))
        line = [ROOT / "launch/tpu_worker.sh", "train", *LINE]
        own = commands.environment | {"HOME": str(commands.folder)}
        return subprocess.run(line, env=own, capture_output=True, text=True, timeout=DEADLINE_S)

    call.commands = commands
    return call


@pytest.mark.parametrize("endpoints", ["10.0.0.1,10.0.0.2", "a:0:10.0.0.1,b:1:10.0.0.2"])
def test_a_host_finds_its_place_and_ends_with_the_code_of_training(host, endpoints):
    ended = host(endpoints, 130)
    assert (ended.returncode, ended.stdout) == (130, "two\nthree\nfour\n")
    (start,) = [call for call in host.commands.calls() if call[0] == "systemd-run"]
    place = ["--coordinator=10.0.0.1:8476", "--processes=2", "--process=1"]
    line = [word.replace("$", "$$") for word in LINE]  # of which systemd makes the words again
    assert start[start.index("-m") :] == ["-m", "ale_jax.launch", *line, *place]


def test_a_host_that_trains_is_only_waited_for(host):
    (host.commands.folder / "ActiveState").write_text("active")
    (host.commands.folder / "ale-jax.log").touch()
    assert host("10.0.0.1,10.0.0.2", 0).returncode == 0
    assert "systemd-run" not in [call[0] for call in host.commands.calls()]
