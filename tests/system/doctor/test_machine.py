"""Folders, limits and sandboxes, most of them of this machine."""

import contextlib
import dataclasses
import io
import os
import resource
import subprocess
import sys

import pytest

from ale_jax.sandbox.egress.uplink import Uplink
from ale_jax.system.checks import checked_config
from ale_jax.system.doctor.findings import Finding, Report, State
from ale_jax.system.doctor.machine import (
    RunFolder,
    check_folder,
    check_open_files,
    check_room,
    check_run,
    check_sandboxes,
    check_shared_memory,
    checkpoint_bytes,
)
from ale_jax.system.workdir import Workdir
from tests.config.smoke import smoke_with
from tests.system.configs import smoke_config

MIB = 1 << 20


@pytest.fixture
def tiny(tmp_path):
    """A disk of one MiB."""
    if os.geteuid():
        pytest.skip("needs root to mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_is_tried_and_left_as_it_was(tmp_path):
    finding = check_folder("workdir", tmp_path / "runs" / "first", "choose another")
    assert finding.state is State.OK and f"to be made in {tmp_path}" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    finding = check_folder("workdir", tmp_path / "file" / "run", "choose another")
    assert finding.state is State.FAIL and "Not a directory" in finding.found
    assert finding.remedy == "choose another"


def told(folder, config, **choices):
    """What an examination says of the run in a folder."""
    report = Report(0)
    report.check("run", check_run, RunFolder(folder, **choices), config)
    return str(report.findings[-1])


def test_a_folder_that_takes_the_run_is_told_from_one_that_refuses_it(tmp_path, capsys):
    run, config, longer = tmp_path / "run", smoke_config(), smoke_config(rl={"steps": 9})
    assert told(run, config).startswith("ok") and "a new one" in told(run, config)
    assert not run.exists()
    with Workdir.claim(run, config):
        assert f"in use by process {os.getpid()}" in told(run, config)
    (run / "metrics.jsonl").write_text('{"phase": "rl", "step": 1, "seconds": 1}\n')
    assert told(run, config).endswith("the one in the folder goes on")
    refused = told(run, longer)
    assert refused.startswith("FAIL") and "give --resume to continue with these" in refused
    assert told(run, longer, resume=True).endswith("goes on, with rl.steps 2 -> 9")
    assert told(run, longer, overwrite=True).startswith("ok")
    assert told(run, smoke_config(seed=1), resume=True).startswith("FAIL")
    (run / "summary.json").write_text("{}")
    assert "nothing is left to do" in told(run, config)


@pytest.mark.heavy
def test_a_full_disk_cannot_be_written(tiny):
    with contextlib.suppress(OSError), (tiny / "rest").open("wb") as file:
        while True:
            file.write(bytes(4096))
    finding = check_folder("workdir", tiny, "choose another")
    assert finding.state is State.FAIL and "No space left" in finding.found


@pytest.mark.heavy
def test_a_disk_that_is_too_small_for_the_checkpoints_is_a_failure(tiny):
    each = checkpoint_bytes(smoke_config())
    assert MIB / 10 < each < MIB, "the smoke config's state"
    assert check_room(tiny / "run", keep=1, each=MIB // 4).state is State.OK
    finding = check_room(tiny / "run", keep=2, each=MIB // 2)
    assert finding.state is State.FAIL
    assert finding.found.startswith("1.0 MiB are free, and the checkpoints to come need 1.5 MiB (")


@pytest.mark.heavy
def test_checkpoints_that_are_there_already_need_no_more_room(tiny):
    assert check_room(tiny, keep=2, each=MIB // 2).state is State.FAIL
    manifest = tiny / "checkpoints" / "step_00000001" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    assert check_room(tiny, keep=2, each=MIB // 2 - 8192).state is State.OK


@pytest.mark.heavy
def test_ray_needs_shared_memory(tiny):
    finding = check_shared_memory(tiny)
    assert finding.state is State.WARN and "1 MiB are free" in finding.found
    assert "--shm-size" in finding.remedy


def test_too_few_open_files_are_a_warning_with_what_to_type():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        assert check_open_files(10).state is State.OK
        finding = check_open_files(20)
        assert finding.state is State.WARN and finding.remedy == "ulimit -n 336"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_sandbox_is_started(runtime_name):
    finding = check_sandboxes(smoke_config(rollout={"runtime": runtime_name}))
    assert finding.state is State.OK and finding.found.startswith(f"{runtime_name} started")


def test_a_proxy_whose_file_is_not_there_is_told(runtime_name):
    rollout = {"runtime": runtime_name, "uplink": Uplink(proxy="/proc/x")}
    config = checked_config(smoke_with({"sandbox.network.mode": "open"}))
    config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **rollout))
    with pytest.raises(ValueError, match="'/proc/x' cannot be read"):
        check_sandboxes(config)


def test_a_runtime_that_does_not_start_is_a_failure_and_not_the_last_line(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    report = Report(0)
    config = smoke_config(rollout={"runtime": "bubblewrap"})
    assert not report.check("sandboxes", check_sandboxes, config)
    report.check("open files", check_open_files, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL  sandboxes") and "bwrap is not installed" in lines[0]
    assert lines[1].startswith("ok    open files")


def test_a_bug_is_no_finding():
    def broken() -> Finding:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        Report(0).check("broken", broken)


@pytest.mark.parametrize("process", [0, 1])
def test_a_finding_is_one_write_so_that_processes_share_a_pipe_line_by_line(process, monkeypatch):
    read, write = os.pipe2(os.O_DIRECT)  # a read of it returns what one write has sent
    with open(read, "rb", buffering=0) as reader, open(write, "wb", buffering=0) as raw:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))
        Report(process).add(Finding("all-reduce", State.OK, "3 over 2 devices"))
        line = reader.read(4096).decode()
        assert line.endswith("3 over 2 devices\n") and line.startswith("process 1: " * process)
        monkeypatch.undo()


@pytest.mark.heavy
def test_text_of_others_cannot_control_the_terminal():
    sent = ["x" * 100, "FAIL", "\x1b[2J\nok    forged", ""]
    line = str(Finding.parse(sent))
    assert line.isprintable() and len(line.splitlines()) == 1
    for wrong in (5, ["a", "b"], ["a", "fine", "c", "d"]):
        with pytest.raises(ValueError):
            Finding.parse(wrong)
