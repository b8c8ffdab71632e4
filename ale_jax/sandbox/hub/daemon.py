"""Requests to the Docker daemon, each with a time limit, and the labels of what it holds for us."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import docker
import urllib3.exceptions
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env, parse_repository_tag

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.cgroups import Owner

API_S = 30.0
PULL_S, PULL_QUIET_S = 1800.0, 300.0
# Every image built from a recipe has these labels. Images built FROM such an image inherit them.
RECIPE_LABEL, NAME_LABEL = "ale.recipe", "ale.image"
# The errors of requests are OSErrors; reading from a stream raises those of urllib3.
TROUBLE = (DockerException, urllib3.exceptions.HTTPError, OSError)


@dataclasses.dataclass(frozen=True)
class Image:
    """An image as the daemon reports it. created: seconds since the epoch, 0 if unknown."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    bytes: int
    created: float


class Daemon(docker.APIClient):
    """A client of the daemon that the environment names (DOCKER_HOST)."""

    def send(self, request, **options):
        # docker-py waits forever where it passes None, as it does in pull().
        options["timeout"] = options.get("timeout") or self.timeout
        return super().send(request, **options)


@contextlib.contextmanager
def connect(timeout: float = API_S) -> Iterator[Daemon]:
    """Connects to the daemon. SandboxStartError, with the command to type, if none answers.

    timeout: seconds to wait for an answer, or for the next part of one.
    """
    try:
        api = Daemon(**kwargs_from_env(), timeout=int(timeout))
    except TROUBLE as error:
        reason = f"docker: no daemon answers ({_first_line(error)}); type: make runtimes"
        raise SandboxStartError(reason) from error
    with contextlib.closing(api):
        yield api


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Converts the daemon's errors to SandboxStartError. Only daemon calls belong in the block."""
    try:
        yield
    except TROUBLE as error:
        raise SandboxStartError(f"docker could not {what}: {_first_line(error)}") from error


def identity(api: Daemon) -> str:
    """Returns the id of this daemon, which is unique and does not change."""
    with asking("report its id"):
        return str(api.info()["ID"])


def find(api: Daemon, name: str) -> Image | None:
    """Returns the image that `name` (or an id) refers to now, None if there is none."""
    with asking(f"look for image {name!r}"):
        try:
            found = api.inspect_image(name)
        except ImageNotFound:
            return None
    return Image(
        id=found["Id"],
        tags=tuple(sorted(found.get("RepoTags") or ())),
        labels=(found.get("Config") or {}).get("Labels") or {},
        bytes=found["Size"],
        created=_seconds(found.get("Created")),
    )


def find_labelled(api: Daemon) -> list[Image]:
    """Returns the images built from recipes, and those built FROM such images."""
    with asking("list its images"):
        listed = api.images(filters={"label": RECIPE_LABEL})
    found = (find(api, each["Id"]) for each in listed)
    return [image for image in found if image]  # one may have been removed since


def tag(api: Daemon, image: Image, name: str) -> None:
    repository, version = parse_repository_tag(name)
    with asking(f"tag image {image.id} as {name!r}"):
        api.tag(image.id, repository, version or "latest")


def untag(api: Daemon, name: str) -> None:
    """Removes a name, and the image with its last name. ValueError if the image is in use."""
    with asking(f"remove image {name!r}"):
        try:
            api.remove_image(name)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:
                raise
            raise ValueError(f"image {name!r} is in use: {error.explanation}") from error


def users(api: Daemon, image: Image) -> list[str]:
    """Names of the containers, running or not, of this image or of one built FROM it."""
    with asking(f"say who uses image {image.id}"):
        found = api.containers(all=True, filters={"ancestor": image.id})
    return [name.lstrip("/") for each in found for name in each["Names"][:1]]


def pull(name: str) -> None:
    """Pulls an image from its registry. SandboxStartError if that fails."""
    repository, version = parse_repository_tag(name)
    with connect(PULL_QUIET_S) as api:
        try:
            messages = api.pull(repository, version or "latest", stream=True, decode=True)
            for _ in watched(messages, PULL_S):
                pass
        except TROUBLE as error:
            raise SandboxStartError(
                f"docker could not pull {name!r}: {_first_line(error)}; if its registry cannot be"
                f" reached from here, type on a machine that reaches it: docker pull {name} &&"
                f" docker save {name} > image.tar, and here: docker load < image.tar"
            ) from error


def watched(messages: Iterable[dict[str, Any]], seconds: float) -> Iterator[str]:
    """Yields the messages of a long operation. DockerException if it fails or takes too long."""
    deadline = time.monotonic() + seconds
    for message in messages:
        if reason := message.get("error"):
            raise DockerException(reason)
        if time.monotonic() > deadline:
            raise DockerException(f"it took longer than {seconds:g} s")
        yield message.get("stream") or message.get("status") or ""


def _seconds(time_text: str | None) -> float:
    return datetime.datetime.fromisoformat(time_text).timestamp() if time_text else 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# Labels by which a runtime's reaper recognizes what dead processes left at the daemon.
OWNER, DEADLINE = "ale.owner", "ale.deadline"
MOMENT_S = 600.0  # no container that helps for a moment is needed for longer


def labels_of(owner: Owner, seconds: float) -> dict[str, str]:
    """Those of a container of `owner`. seconds: after them it counts as abandoned if its owner
    cannot be checked from the reaper's host."""
    return {OWNER: str(owner), DEADLINE: str(int(time.time() + seconds))}


@contextlib.contextmanager
def unstarted(api: docker.APIClient, image: str, **options: Any) -> Iterator[str]:
    """Yields a container of `image` that never runs, for access to its files.

    Raises SandboxStartError at the end if somebody else has removed it meanwhile: all files are
    missing then, for the daemon's answer is the same. options: of docker-py's create_container.
    """
    labels = options.pop("labels", {}) | labels_of(Owner.current(), MOMENT_S)
    container = api.create_container(image, ["-"], labels=labels, **options)["Id"]
    try:
        yield container
    finally:
        was_here = remove_container(api, container)
    if not was_here:
        raise SandboxStartError(
            f"docker: somebody removed container {container[:12]} of {image}, which read its"
            " files: try again"
        )


def remove_container(api: docker.APIClient, container: str) -> bool:
    """Kills and removes a container and its anonymous volumes; returns False if it is gone, or its
    removal is in progress, already."""
    try:
        api.remove_container(container, force=True, v=True)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code != 409:  # 409: its removal is already in progress
            raise
        return False
    return True
