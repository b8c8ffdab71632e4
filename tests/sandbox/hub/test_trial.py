"""An image is proved by starting it, and its task by its oracle; the outcome is written down."""

import contextlib
import dataclasses
import subprocess

import pytest

from ale_jax.sandbox.api import ExecResult, SandboxSpec, SandboxStartError
from ale_jax.sandbox.docker_runtime import DockerRuntime
from ale_jax.sandbox.hub import daemon
from ale_jax.sandbox.hub.hub import first_fault

pytestmark = pytest.mark.heavy


class Box:
    """A sandbox as simple as can be: a folder, and a new shell for each command.

    prefix: of the command line.
    """

    def __init__(self, folder, prefix=()):
        self._folder, self._prefix = folder, prefix

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        done = subprocess.run(
            [*self._prefix, "bash", "-c", command],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ExecResult(done.stdout, done.returncode, False, 0, 0.0)

    def write(self, files) -> None:
        for path, content in files.items():
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / path).write_bytes(content)

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return (self._folder / path).read_bytes()


class Rooms:
    """Starts boxes, each in a new folder."""

    def __init__(self, folder, box=Box):
        self._folder, self._box, self.images = folder, box, []

    @contextlib.contextmanager
    def start(self, spec: SandboxSpec):
        room = self._folder / f"room{len(self.images)}"
        self.images.append(spec.image)
        room.mkdir()
        yield self._box(room)


@pytest.fixture
def rooms(tmp_path):
    return Rooms(tmp_path)


def judge(sandbox, oracle: bool) -> float:
    """A task: there has to be a file `done`."""
    if oracle:
        sandbox.run("touch done")
    return float(sandbox.run("test -e done").exit_code == 0)


class Bare(Box):
    """One that holds no program but the shell."""

    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        return super().run(f"PATH=/nowhere; {command}")


def test_an_image_without_any_program_can_be_sound(tmp_path):
    assert first_fault(Rooms(tmp_path, Bare).start, SandboxSpec(), None) is None


def test_what_is_sound_has_no_fault_and_every_verdict_a_fresh_sandbox(rooms):
    assert first_fault(rooms.start, SandboxSpec(image="ale-x"), judge) is None
    assert rooms.images == ["ale-x"] * 3
    assert first_fault(rooms.start, SandboxSpec(), None) is None
    assert len(rooms.images) == 4


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (lambda box, oracle: 1.0, "doing nothing scores 1.0 instead of 0"),
        (lambda box, oracle: 0.5 * judge(box, oracle), "the oracle scores 0.5 instead of 1"),
        (lambda box, oracle: float("nan"), "the oracle scores nan instead of 1"),
    ],
)
def test_a_judge_that_judges_wrongly_is_found_out(rooms, wrong, fault):
    assert first_fault(rooms.start, SandboxSpec(), wrong) == fault


class Forgetful(Box):
    def write(self, files) -> None:
        pass


class Changing(Box):
    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        return super().read(path).replace(b"\xff", b"?")


class Optimistic(Box):
    def run(self, command: str, timeout: float | None = None) -> ExecResult:
        return dataclasses.replace(super().run(command), exit_code=0)


FAULTS = {
    "nothing runs": (lambda room: Box(room, ["echo"]), "'echo' printed 'bash -c echo "),
    "all succeeds": (Optimistic, "exit code 3 is reported as 0"),
    "nothing is written": (Forgetful, "a file that was written cannot be copied: "),
    "bytes are lost": (Changing, "a file that was written cannot be copied: ''"),
}


@pytest.mark.parametrize(("box", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_out(tmp_path, box, fault):
    assert first_fault(Rooms(tmp_path, box).start, SandboxSpec(), None).startswith(fault)


def test_trouble_of_the_sandbox_is_a_fault_and_any_other_is_raised(rooms):
    def no_verdict(sandbox, oracle):
        raise SandboxStartError("gone")

    assert first_fault(rooms.start, SandboxSpec(), no_verdict) == "SandboxStartError: gone"
    with pytest.raises(ZeroDivisionError):
        first_fault(rooms.start, SandboxSpec(), lambda sandbox, oracle: 1 / 0)


@pytest.fixture
def start(api, base):
    runtime = DockerRuntime(SandboxSpec(image=base))
    return lambda spec: runtime.start(spec, {"run": "tests"})


def test_what_was_found_is_written_down(workshop, start):
    workshop.dockerfile()  # holds nothing: the runtime brings along what it needs
    made = workshop.hub.ensure(workshop.image)
    said = workshop.hub.validate(workshop.image, start, "docker")
    assert (said.runtime, said.ok, said.detail) == ("docker", True, "in order")
    assert workshop.hub.inspect(workshop.image) == dataclasses.replace(made, verified=said)
    assert workshop.hub.ensure(workshop.image).verified == said


def test_an_image_that_cannot_start_is_written_down_as_such(workshop, start):
    workshop.dockerfile("COPY Dockerfile /work")  # where a folder has to be
    workshop.hub.ensure(workshop.image)
    said = workshop.hub.validate(workshop.image, start, "docker")
    assert not said.ok and said.detail.startswith("SandboxStartError: docker could not start")
    assert workshop.hub.inspect(workshop.image).verified == said


def test_another_image_of_the_same_name_does_not_inherit_the_proof(workshop, api, rooms):
    first, second, _ = workshop.versions(api)

    @contextlib.contextmanager
    def start_and_replace(spec: SandboxSpec):
        with rooms.start(spec) as sandbox:
            yield sandbox
        daemon.untag(api, first.reference)
        daemon.tag(api, daemon.find(api, second.image_id), first.reference)
        assert workshop.hub.inspect(first.reference).image_id == second.image_id

    assert workshop.hub.validate(first.reference, start_and_replace, "bubblewrap").ok
    assert workshop.hub.inspect(first.reference).verified is None
