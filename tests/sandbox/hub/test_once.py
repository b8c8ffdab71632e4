"""One builder at a time, whoever asks; and one that dies does not stand in the way."""

import dataclasses
import os
import threading

import pytest

from ale_jax.sandbox.hub import daemon, ensure
from tests.sandbox.hub.conftest import is_gone, is_waiting, wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def ask(workshop):
    """Starts processes that ask for the image."""
    asking = []

    def start():
        asking.append(workshop.ensure_elsewhere())
        return asking[-1]

    yield start
    for process in asking:
        process.kill()
        process.communicate()


@pytest.fixture
def slow(workshop, base, command_line, tmp_path):
    """A recipe that goes on when the file `go` is there, and the list of those who ran it."""
    workshop.script(
        # Whoever does not wait for it to tidy up is seen to start meanwhile.
        f"trap '[ -e {tmp_path}/go ] || sleep 0.5; echo $$ >> {tmp_path}/tidied' EXIT",
        f"echo $$ >> {tmp_path}/builders",
        f"until [ -e {tmp_path}/go ]; do sleep 0.01; done",
        # The base's root file system will do; what counts is that the image is this script's.
        f'printf "FROM {base}\\nLABEL $ALE_LABELS {workshop.mark}\\n"'
        ' | DOCKER_BUILDKIT=0 docker build --quiet --tag "$ALE_IMAGE" -',
    )
    (tmp_path / "builders").touch()
    return lambda: [int(pid) for pid in (tmp_path / "builders").read_text().split()]


def test_two_who_ask_at_once_build_once_and_both_have_it(workshop, api, ask, slow, tmp_path):
    first = ask()
    wait_until(slow)
    second = ask()
    wait_until(lambda: is_waiting(second.pid))
    (tmp_path / "go").touch()
    said = [each.communicate() for each in (first, second)]
    image = daemon.find(api, workshop.image)
    assert [out for out, _ in said] == [f"{image.id}\n"] * 2, said
    assert len(slow()) == 1


def test_a_killed_builder_ends_its_script_before_the_next_one_starts(
    workshop, api, ask, slow, tmp_path
):
    first = ask()
    wait_until(slow)
    second = ask()
    wait_until(lambda: is_waiting(second.pid))
    first.kill()
    wait_until(lambda: len(slow()) == 2)
    killed, running = slow()
    assert is_gone(killed) and not is_gone(running)
    assert (tmp_path / "tidied").read_text().split() == [str(killed)]
    assert daemon.find(api, workshop.image) is None
    (tmp_path / "go").touch()
    out, errors = second.communicate()
    assert out == f"{daemon.find(api, workshop.image).id}\n", errors


def test_removing_an_image_waits_for_those_who_build(workshop, api, ask, slow, tmp_path):
    workshop.dockerfile(name=f"{workshop.name}-other")
    other = workshop.hub.ensure(f"{workshop.image}-other")
    builder = ask()
    wait_until(slow)
    remover = threading.Thread(target=workshop.hub.remove, args=[other.name])
    remover.start()
    wait_until(lambda: is_waiting(os.getpid()))
    assert daemon.find(api, other.name).id == other.image_id
    (tmp_path / "go").touch()
    remover.join()
    assert daemon.find(api, other.name) is None
    assert builder.communicate()[0] == f"{daemon.find(api, workshop.image).id}\n"


def test_a_killed_builder_of_a_dockerfile_leaves_nothing(workshop, api, base, ask, mark):
    workshop.dockerfile("RUN sleep 1000", start=base)
    builder = ask()
    wait_until(lambda: api.containers(filters={"label": mark}))
    builder.kill()
    wait_until(lambda: not api.containers(all=True, filters={"label": mark}))
    assert not any(workshop.name in str(each["RepoTags"]) for each in api.images(all=True))
    workshop.dockerfile("RUN sleep 0", start=base)
    workshop.hub.ensure(workshop.image)


@pytest.mark.parametrize("dead", ["before the name", "before the manifest"])
def test_one_who_died_after_the_build_is_made_up_for(workshop, api, monkeypatch, dead):
    workshop.dockerfile()
    made = workshop.hub.ensure(workshop.image)
    (path,) = workshop.hub.state.rglob("*.json")
    path.unlink()
    if dead == "before the name":
        daemon.untag(api, workshop.image)
    monkeypatch.delattr(ensure, "build")
    again = workshop.hub.ensure(workshop.image)
    assert again == dataclasses.replace(made, build_seconds=None) and path.exists()
    assert daemon.find(api, workshop.image).id == made.image_id
