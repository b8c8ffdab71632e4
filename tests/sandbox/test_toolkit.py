"""The runner brings what it needs: it works in an image that holds nothing at all."""

import contextlib
import dataclasses
import fcntl
import os
import tempfile
from types import SimpleNamespace

import docker
import pytest

from ale_jax.sandbox import docker_runtime, toolkit
from ale_jax.sandbox.runtime import pick_runtime
from tests.sandbox.conftest import SPEC


@pytest.fixture(scope="module")
def api():
    if reason := docker_runtime.probe(SPEC):
        pytest.skip(f"docker: {reason}")
    return docker.from_env().api


@pytest.fixture(scope="module")
def bare_box(api, empty_image):
    spec = dataclasses.replace(SPEC, image=empty_image)
    with pick_runtime("docker", spec).start(spec, {}) as sandbox:
        yield sandbox


@pytest.mark.heavy
def test_a_session_in_an_empty_image(bare_box):
    bare_box.run("cd /tmp; x=3")
    assert bare_box.run("echo $x $PWD").output == "3 /tmp\n"
    result = bare_box.run("ls")
    assert (result.output, result.exit_code) == ("bash: line 1: ls: command not found\n", 127)


@pytest.mark.heavy
def test_processes_and_files_in_an_empty_image(bare_box):
    bare_box.write({"d/f": b"text"})
    assert bare_box.exec("read line < d/f; echo $line >&2; exit 3").stderr == "text\n"
    snapshot = bare_box.snapshot()
    bare_box.reset()
    with pytest.raises(FileNotFoundError):
        bare_box.read("d/f")
    bare_box.restore(snapshot)
    assert bare_box.read("d/f") == b"text"


@pytest.mark.heavy
def test_the_agent_cannot_change_the_toolkit(bare_box):
    assert bare_box.run(f"echo x > {toolkit.HOME}/bin/bash").exit_code != 0


@pytest.mark.heavy
def test_the_toolkit_is_made_once_and_the_same_each_time():
    address, _ = toolkit.archive()
    toolkit.archive.cache_clear()
    assert toolkit.archive()[0] == address


LOCK = "ale-toolkit-x.lock"


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A directory like /tmp."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return shared


def locked() -> bool:
    with toolkit._one_at_a_time("x"):
        return True


def as_another_user(directory, act) -> bool:
    """Whether `act` returns True in a process of another user, who may enter the directory."""
    pid = os.fork()
    if not pid:
        try:
            os.chdir(directory)  # its parents may be closed to that user
            os.setgid(12345)
            os.setuid(12345)
            tempfile.tempdir = "."
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.heavy
def test_the_lock_of_one_user_serves_the_others(shared):
    if os.getuid():
        pytest.skip("needs root, to become another user")
    mask = os.umask(0o077)
    try:
        assert locked()
        assert as_another_user(shared, locked)
        (shared / LOCK).unlink()
        assert as_another_user(shared, locked)
        assert (shared / LOCK).stat().st_uid == 12345
    finally:
        os.umask(mask)
    assert locked()


def test_only_one_process_has_the_lock(shared):
    with toolkit._one_at_a_time("x"), (shared / LOCK).open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with (shared / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_somebody_has_put_in_place_of_the_lock_is_not_followed_or_changed(shared, tmp_path):
    (tmp_path / "mine").write_text("kept")
    (shared / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=f"{LOCK}: .*: remove it"):
        locked()
    (shared / LOCK).unlink()
    (shared / LOCK).hardlink_to(tmp_path / "mine")
    assert locked() and (tmp_path / "mine").read_text() == "kept"
    (shared / LOCK).unlink()
    os.mkfifo(shared / LOCK)
    assert locked()


@pytest.mark.parametrize(
    ("seen", "locks", "written"), [([True], 0, 0), ([False, True], 1, 0), ([False, False], 1, 2)]
)
def test_only_who_has_to_fill_the_volume_waits_for_the_lock(seen, locks, written, monkeypatch):
    api, taken, left = SimpleNamespace(), [], list(seen)
    put = []
    api.create_volume = lambda name, labels: None
    api.put_archive = lambda *arguments: put.append(arguments)

    @contextlib.contextmanager
    def lock(address):
        taken.append(address)
        yield

    monkeypatch.setattr(toolkit, "archive", lambda: ("x", b"packed"))
    monkeypatch.setattr(toolkit, "_container", lambda *arguments: contextlib.nullcontext("c"))
    monkeypatch.setattr(toolkit, "_is_complete", lambda api, container: left.pop(0))
    monkeypatch.setattr(toolkit, "_one_at_a_time", lock)
    assert toolkit.ensure_volume(api, "image") == "ale-toolkit-x"
    assert (len(taken), len(put), left) == (locks, written, [])


@pytest.mark.heavy
def test_a_volume_that_was_not_filled_to_its_end_is_filled_again(api, monkeypatch):
    monkeypatch.setattr(toolkit, "archive", lambda: ("testing", toolkit._mark()))
    monkeypatch.setattr(toolkit, "MARK", "not written")
    name = toolkit.ensure_volume(api, SPEC.image)  # as if it had been cut off before the mark
    try:
        monkeypatch.setattr(toolkit, "MARK", "complete again")
        written = []
        put = api.put_archive
        monkeypatch.setattr(api, "put_archive", lambda *a: written.append(a[1]) or put(*a))
        toolkit.ensure_volume(api, SPEC.image)
        assert len(written) == 2
        toolkit.ensure_volume(api, SPEC.image)
        assert len(written) == 2
    finally:
        api.remove_volume(name)
