"""What a bubblewrap sandbox has of the host is freed, whatever else fails."""

import asyncio
import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ale_jax.sandbox import bubblewrap_process
from ale_jax.sandbox.bubblewrap_process import BubblewrapMachine, Share, Started, start

pytestmark = pytest.mark.heavy


class Part:
    """A part of the host. errors: what the first attempts to free it raise."""

    def __init__(self, *errors):
        self.errors, self.attempts = list(errors), 0

    def release(self):
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)


class Group(Part):
    directories = (Path("/cgroup/ale-x"),)
    remove = Part.release

    def open_gates(self):
        return []


@pytest.fixture
def share():
    return Share(Group(), Part(), Part())


def freed(share):
    return [part.attempts for part in share]


@pytest.mark.parametrize(
    ("line", "error"), [(["/bin/true", "a\0b"], ValueError), (["/no/such/program"], OSError)]
)
def test_a_line_that_cannot_be_run_frees_the_share(share, line, error):
    with pytest.raises(error):
        start(share, line, [])
    assert freed(share) == [1, 1, 1]


def machine(share, line=("true",)):
    process = subprocess.Popen(line, stderr=subprocess.PIPE)
    link = SimpleNamespace(fail=lambda reason: None)
    return BubblewrapMachine(Started(process, share, [], None), link, None)


def destroy(machine):
    asyncio.run(machine.destroy())


def test_a_cgroup_that_stays_keeps_nothing_else_and_is_removed_by_another_attempt(share, caplog):
    busy = share._replace(group=Group(OSError("busy")))
    ended = machine(busy)
    destroy(ended)
    assert freed(busy) == [1, 1, 1]
    assert "cgroup ale-x is left to another attempt" in caplog.text and "busy" in caplog.text
    for _ in range(2):
        destroy(ended)
    assert freed(busy) == [2, 1, 1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_part_that_cannot_be_freed_is_named_and_keeps_no_other(share, number, caplog):
    broken = Share(*share[:number], Part(RuntimeError("no thread")), *share[number + 1 :])
    destroy(machine(broken))
    assert freed(broken) == [1, 1, 1]
    name = ("user id", "root on disk")[number - 1]
    assert f"a {name} is left until this process ends: no thread" in caplog.text


def test_what_a_living_process_uses_is_kept_until_it_has_ended(share, caplog, monkeypatch):
    monkeypatch.setattr(bubblewrap_process, "LEAVE_S", 0.01)
    monkeypatch.setattr(bubblewrap_process, "EXIT_S", 0.01)
    living = machine(share, ("sleep", "100"))
    process = living._process
    try:
        with monkeypatch.context() as patch:
            patch.setattr(process, "kill", lambda: None)
            destroy(living)
        assert freed(share) == [0, 0, 0] and "does not end" in caplog.text
        monkeypatch.setattr(bubblewrap_process, "EXIT_S", 30.0)
        destroy(living)
        assert freed(share) == [1, 1, 1]
    finally:
        process.kill()
        process.wait()


def test_what_was_freed_at_once_is_not_freed_again_nor_logged(share, caplog):
    with caplog.at_level(logging.WARNING):
        ended = machine(share)
        destroy(ended)
        destroy(ended)
    assert freed(share) == [1, 1, 1] and not caplog.records
