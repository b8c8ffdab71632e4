"""What the registry asks of the Docker daemon. No call waits for ever."""

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

API_S = 30.0
PULL_S, PULL_QUIET_S = 1800.0, 300.0
# On every image that is made from a recipe: which one. Images made FROM such a one inherit it.
RECIPE_LABEL, NAME_LABEL = "ale.recipe", "ale.image"
# requests' own errors are OSErrors; what it reads as a stream fails with urllib3's.
TROUBLE = (DockerException, urllib3.exceptions.HTTPError, OSError)


@dataclasses.dataclass(frozen=True)
class Image:
    """An image as the daemon has it. created: seconds since the epoch, 0 where nothing says."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    bytes: int
    created: float


class Daemon(docker.APIClient):
    """The daemon that the environment names (DOCKER_HOST)."""

    def send(self, request, **options):
        # The library waits for ever where it passes None, as it does in pull().
        options["timeout"] = options.get("timeout") or self.timeout
        return super().send(request, **options)


@contextlib.contextmanager
def connect(timeout: float = API_S) -> Iterator[Daemon]:
    """SandboxStartError, with the line to type, if no daemon answers.

    timeout: seconds that any answer, or the next part of one, may take.
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
    """Makes SandboxStartError of any trouble with the daemon; only calls of it belong inside."""
    try:
        yield
    except TROUBLE as error:
        raise SandboxStartError(f"docker could not {what}: {_first_line(error)}") from error


def identity(api: Daemon) -> str:
    """What tells this daemon from all others, for good."""
    with asking("say who it is"):
        return str(api.info()["ID"])


def find(api: Daemon, name: str) -> Image | None:
    """The image that `name` (or an id) stands for now."""
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
    """The images made from recipes, and those made FROM such ones."""
    with asking("list its images"):
        listed = api.images(filters={"label": RECIPE_LABEL})
    found = (find(api, each["Id"]) for each in listed)
    return [image for image in found if image]  # one may have gone meanwhile


def tag(api: Daemon, image: Image, name: str) -> None:
    repository, version = parse_repository_tag(name)
    with asking(f"call image {image.id} {name!r}"):
        api.tag(image.id, repository, version or "latest")


def untag(api: Daemon, name: str) -> None:
    """Takes a name away, and with the last one the image. ValueError if that is in use."""
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
    """The names of the containers, running or not, of this image or of one made FROM it."""
    with asking(f"say who uses image {image.id}"):
        found = api.containers(all=True, filters={"ancestor": image.id})
    return [name.lstrip("/") for each in found for name in each["Names"][:1]]


def pull(name: str) -> None:
    """Fetches an image from its registry. SandboxStartError if that fails."""
    repository, version = parse_repository_tag(name)
    with connect(PULL_QUIET_S) as api, asking(f"pull {name!r}"):
        messages = api.pull(repository, version or "latest", stream=True, decode=True)
        for _ in watched(messages, PULL_S):
            pass


def watched(messages: Iterable[dict[str, Any]], seconds: float) -> Iterator[str]:
    """The text of what the daemon reports on a long task. DockerException if that failed."""
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
