"""The runner brings what it needs: it works in an image that holds nothing at all."""

import dataclasses

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


def test_a_session_in_an_empty_image(bare_box):
    bare_box.run("cd /tmp; x=3")
    assert bare_box.run("echo $x $PWD").output == "3 /tmp\n"
    result = bare_box.run("ls")
    assert (result.output, result.exit_code) == ("bash: line 1: ls: command not found\n", 127)


def test_processes_and_files_in_an_empty_image(bare_box):
    bare_box.write({"d/f": b"text"})
    assert bare_box.exec("read line < d/f; echo $line >&2; exit 3").stderr == "text\n"
    snapshot = bare_box.snapshot()
    bare_box.reset()
    with pytest.raises(FileNotFoundError):
        bare_box.read("d/f")
    bare_box.restore(snapshot)
    assert bare_box.read("d/f") == b"text"


def test_the_agent_cannot_change_the_toolkit(bare_box):
    assert bare_box.run(f"echo x > {toolkit.HOME}/bin/bash").exit_code != 0


def test_the_toolkit_is_made_once_and_the_same_each_time():
    address, _ = toolkit.archive()
    toolkit.archive.cache_clear()
    assert toolkit.archive()[0] == address


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
