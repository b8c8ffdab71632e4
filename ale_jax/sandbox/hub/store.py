"""What the registry stores: image names, manifests as JSON, build logs, and the locks that make
concurrent builders wait."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import re
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ale_jax import files

ADDRESS_DIGITS = 12
MAX_CHARACTERS = 128

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_MOVING = re.compile(rf"ale-({_PART})(?::latest)?")
_PINNED = re.compile(rf"ale/({_PART}):([0-9a-f]{{{ADDRESS_DIGITS}}})")
_HOST = r"[a-zA-Z\d][a-zA-Z\d-]*(?:\.[a-zA-Z\d-]+)*(?::\d+)?/"
_ANY = re.compile(
    rf"(?:{_HOST})?{_PART}(?:/{_PART})*(?::\w[\w.-]*)?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)


@dataclasses.dataclass(frozen=True)
class ImageName:
    """An image as `SandboxSpec.image` names it.

    recipe: "shell" for "ale-shell" and for "ale/shell:HASH", None for a third-party image.
    address: of the recipe's content, if the name pins it; None for the newest.
    """

    text: str
    recipe: str | None = None
    address: str | None = None

    @property
    def moving(self) -> str:
        """The name of the newest image of the recipe; for a third-party image, its name."""
        return f"ale-{self.recipe}" if self.recipe else self.text


def parse(text: str) -> ImageName:
    """Parses the name of an image. ValueError if `text` is not one."""
    if ours := parse_ours(text):
        return ours
    if len(text) > MAX_CHARACTERS or not _ANY.fullmatch(text):
        raise ValueError(
            f"{text!r:.200} is not the name of an image; "
            f"use one like 'ale-shell' or 'debian:12', of at most {MAX_CHARACTERS} characters"
        )
    return ImageName(text)


def parse_ours(text: str) -> ImageName | None:
    """Parses the name of an image that is built from a recipe; None if `text` is not one."""
    if len(text) > MAX_CHARACTERS:
        return None
    if found := _MOVING.fullmatch(text):
        return ImageName(f"ale-{found[1]}", found[1])
    if found := _PINNED.fullmatch(text):
        return ImageName(text, found[1], found[2])
    return None


def reference(recipe: str, address: str) -> str:
    """Returns the permanent name of the image for one content of a recipe."""
    assert len(address) == ADDRESS_DIGITS, address
    return f"ale/{recipe}:{address}"


class _Checked:
    """A record that rejects fields of the wrong type, because it may have been read from a file."""

    def __post_init__(self):
        for field, kind in typing.get_type_hints(type(self)).items():
            if not isinstance(value := getattr(self, field), kind):
                raise ValueError(f"{field} must be {kind}, is {value!r:.80}")


@dataclasses.dataclass(frozen=True)
class Capabilities(_Checked):
    """What an image contains that a sandbox, or an agent in it, may need.

    agent: whether /etc/passwd has a user of that name. libc: "glibc", "musl" or "none", depending
    on which program loader is there.
    """

    bash: bool
    python3: bool
    tar: bool
    agent: bool
    libc: str


@dataclasses.dataclass(frozen=True)
class Verification(_Checked):
    """The latest test of an image. time: seconds since the epoch."""

    time: float
    runtime: str
    ok: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class Manifest(_Checked):
    """An image that the daemon of this node has.

    name: as in `SandboxSpec.image`. reference: the same with the recipe's address, which `recipe`
    also holds; a third-party image has its name as the reference, and no recipe.
    bytes: of all its layers. built: seconds since the epoch, according to the daemon.
    build_seconds: None if unknown.
    """

    name: str
    reference: str
    recipe: str | None
    image_id: str
    bytes: int
    built: float
    build_seconds: float | None
    capabilities: Capabilities
    verified: Verification | None


def to_json(manifest: Manifest) -> dict[str, Any]:
    return dataclasses.asdict(manifest)


def from_json(content: Any) -> Manifest:
    """The inverse of `to_json`. ValueError if `content` is not a manifest."""
    try:
        fields = dict(content)
        fields["capabilities"] = Capabilities(**fields["capabilities"])
        if fields["verified"] is not None:
            fields["verified"] = Verification(**fields["verified"])
        return Manifest(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a manifest ({error!r:.200})") from error


STATE_VARIABLE = "ALE_HUB_STATE"
RECIPES_VARIABLE = "ALE_RECIPES"  # names the folder of one's own recipes
EVERY_IMAGE = "*"  # not a valid image name
SUFFIX = ".json"

log = logging.getLogger(__name__)


def default_state() -> Path:
    """Returns the folder of the files: $ALE_HUB_STATE, or ale/hub in the user's state folder.

    ValueError if the user has no home.
    """
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen)
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "ale" / "hub"
    try:
        return Path("~/.local/state/ale/hub").expanduser()
    except RuntimeError as error:
        raise _unusable(error) from error


@dataclasses.dataclass(frozen=True)
class ImageStore:
    """The files about the images of one daemon. Nodes may share the parent folder."""

    folder: Path

    @contextlib.contextmanager
    def lock(self, key: str, shared: bool = False) -> Iterator[int]:
        """Holds the lock called `key`, after waiting for it if necessary; yields its descriptor.

        The lock is released when the descriptor and all copies that children inherited are closed,
        at the latest when those processes die. The file is not removed: otherwise, processes that
        are waiting for it and new ones would lock different files.
        """
        path = self.folder / "locks" / quote(key, safe="")
        fd = _open(path)
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for the process that holds %s", path)
                fcntl.flock(fd, how)
            yield fd
        finally:
            os.close(fd)

    def read(self, reference: str) -> Manifest | None:
        """Reads a manifest; None if there is none. ValueError, with its file, if it is damaged."""
        path = self._manifest(reference)
        try:
            content = files.read_json(path)
        except FileNotFoundError:
            return None
        try:
            found = from_json(content)
        except ValueError as error:
            raise ValueError(f"{path}: damaged ({error})") from error
        if found.reference != reference:
            raise ValueError(f"{path}: damaged (it is about {found.reference!r:.200})")
        return found

    def read_or_set_aside(self, reference: str) -> Manifest | None:
        """Like `read`, but renames a damaged file. The caller must hold the image's lock."""
        try:
            return self.read(reference)
        except ValueError as error:
            aside = f"{self._manifest(reference)}.damaged.{time.time_ns()}"
            os.rename(self._manifest(reference), aside)
            log.warning("%s; renamed to %s, and written again", error, aside)
            return None

    def write(self, described: Manifest) -> None:
        files.write_json(self._manifest(described.reference), to_json(described))

    def forget(self, reference: str) -> None:
        self._manifest(reference).unlink(missing_ok=True)

    def references(self) -> list[str]:
        """References of the images that have a manifest."""
        found = (self.folder / "images").glob(f"*{SUFFIX}")
        return sorted(unquote(path.name.removesuffix(SUFFIX)) for path in found)

    def build_log(self, reference: str) -> Path:
        path = self.folder / "logs" / f"{quote(reference, safe='')}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _manifest(self, reference: str) -> Path:
        return self.folder / "images" / f"{quote(reference, safe='')}{SUFFIX}"


def open_store(state: Path, daemon: str) -> ImageStore:
    """Returns the store of the daemon with that id."""
    return ImageStore(state / hashlib.sha256(daemon.encode()).hexdigest()[:12])


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> ValueError:
    return ValueError(
        f"cannot keep the registry's files ({error}); "
        f"set {STATE_VARIABLE} to a folder that you may write to"
    )
