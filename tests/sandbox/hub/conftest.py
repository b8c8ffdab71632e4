"""A registry of its own for each test, on the real daemon. All that is made carries one label."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from docker.errors import APIError

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.hub import daemon
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.hub.store import ADDRESS_DIGITS, Capabilities, Manifest, open_store

ROOT = Path(__file__).parents[3]
LABEL = "ale.hubtest"
BASE = "ale-shell"
NOTHING = bytes(10240)  # a tar file without files
HOLDS_NOTHING = Capabilities(bash=False, python3=False, tar=False, agent=False, libc="none")

# What another process does with a registry: argv is the folder of recipes, the state, the image.
CHILD = """
import pathlib, sys
from ale_jax.sandbox.hub.hub import Hub
recipes, state, image = sys.argv[1:]
folders = {path.name: path for path in pathlib.Path(recipes).iterdir()}
print(Hub(folders.get, pathlib.Path(state)).ensure(image).image_id)
"""


@pytest.fixture(scope="session")
def api():
    try:
        connection = daemon.connect()
        connected = connection.__enter__()
    except SandboxStartError as error:
        pytest.skip(str(error))
    yield connected
    connection.__exit__(None, None, None)


@pytest.fixture(scope="session")
def base(api):
    if daemon.find(api, BASE) is None:
        pytest.skip(f"docker: image {BASE!r} is missing; type: make runtimes")
    return BASE


@pytest.fixture(scope="session")
def command_line(api):
    if shutil.which("docker") is None:
        pytest.skip("docker: its command line is missing; type: make runtimes")


@pytest.fixture(scope="session")
def mark(api):
    """The label of all that these tests make; what carries it is removed when they are over."""
    mark = f"{LABEL}={uuid.uuid4().hex[:8]}"
    yield mark
    # Layers of builds that failed, from the youngest to the oldest.
    chosen = {"label": mark}
    while left := api.images(all=True, filters=chosen):
        before = len(left)
        for each in left:
            with contextlib.suppress(APIError):
                api.remove_image(each["Id"])
        assert len(api.images(all=True, filters=chosen)) < before, left


class Workshop:
    """Recipes in a folder, and a registry that finds them there by a name nobody else uses."""

    def __init__(self, folder: Path, mark: str):
        self.recipes, self.mark = folder / "recipes", mark
        self.name = f"hubtest-{uuid.uuid4().hex[:8]}"
        self.image = f"ale-{self.name}"
        self.hub = Hub(self.find, folder / "state")

    def find(self, name: str) -> Path | None:
        folder = self.recipes / name
        return folder if folder.is_dir() else None

    @property
    def folder(self) -> Path:
        return self.recipes / self.name

    def write(self, files: dict[str, str], name: str | None = None) -> Path:
        folder = self.recipes / (name or self.name)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            if path == "build.sh":
                (folder / path).chmod(0o755)
        return folder

    def dockerfile(self, *lines: str, start: str = "scratch", name: str | None = None) -> Path:
        text = "\n".join([f"FROM {start}", f"LABEL {self.mark}", *lines, ""])
        return self.write({"Dockerfile": text}, name)

    def script(self, *lines: str) -> Path:
        return self.write({"build.sh": "\n".join(["#!/bin/bash", "set -eu", *lines, ""])})

    def versions(self, api) -> list[Manifest]:
        """Three images of the recipe, oldest first, as if built from three contents of it."""
        store = open_store(self.hub.state, daemon.identity(api))
        made = []
        for version in "abc":
            address = version * ADDRESS_DIGITS
            reference = f"ale/{self.name}:{address}"
            labels = f"ale.recipe={address} ale.image={self.image}"
            self.load(api, f"ale/{self.name}", address, labels)
            image = daemon.find(api, reference)
            daemon.tag(api, image, self.image)
            facts = (image.id, image.bytes, image.created, None, HOLDS_NOTHING, None)
            made.append(Manifest(self.image, reference, address, *facts))
            store.write(made[-1])
        return made

    def load(self, api, repository: str, version: str, labels: str = "") -> None:
        """An image that holds nothing, with labels of the test's choice."""
        change = f"LABEL {self.mark} {labels}"
        api.import_image_from_data(NOTHING, repository, version, changes=[change])

    def ensure_elsewhere(self) -> subprocess.Popen:
        """Another process that asks for the image; it prints its id."""
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, self.recipes, self.hub.state, self.image],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )


@pytest.fixture
def workshop(api, tmp_path, mark):
    workshop, ours = Workshop(tmp_path, mark), str(Owner.current())
    yield workshop
    for each in api.containers(all=True, filters={"label": mark}):
        # Another test, which lists all images, may be reading one that has this test's label.
        if each["Labels"].get(daemon.OWNER, ours) == ours:
            daemon.remove_container(api, each["Id"])
    for each in api.images(filters={"label": mark}):
        for tag in each["RepoTags"] or ():
            if tag != "<none>:<none>":
                api.remove_image(tag, force=True)  # for the same reason


def is_gone(pid: int) -> bool:
    """Whether it has ended, also if nobody has asked yet how."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_waiting(pid: int) -> bool:
    """Whether the kernel has it in line for a lock: `1: -> FLOCK ADVISORY WRITE pid ...`"""
    with open("/proc/locks") as locks:
        return any(line.split()[1] == "->" and line.split()[5] == str(pid) for line in locks)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
