"""The files of the registry: manifests, build logs, and the locks that make one builder wait."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from ale_jax import files
from ale_jax.sandbox.hub import manifest
from ale_jax.sandbox.hub.manifest import Manifest

STATE_VARIABLE = "ALE_HUB_STATE"
EVERY_IMAGE = "*"  # no image can be called that
SUFFIX = ".json"

log = logging.getLogger(__name__)


def default_state() -> Path:
    """Where the files are: $ALE_HUB_STATE, or ale/hub in the user's folder for such things.

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
class Store:
    """What is known of the images of one daemon. Nodes may share the folder above it."""

    folder: Path

    @contextlib.contextmanager
    def lock(self, key: str, shared: bool = False) -> Iterator[int]:
        """Holds the lock called `key`, waiting for it; yields its descriptor.

        It is let go when the descriptor, and every copy that a child was given, is closed: at the
        latest when those processes die. The file stays: removing it would part those who wait from
        those who come.
        """
        path = self.folder / "locks" / quote(key, safe="")
        fd = _open(path)
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for whoever holds %s", path)
                fcntl.flock(fd, how)
            yield fd
        finally:
            os.close(fd)

    def read(self, reference: str) -> Manifest | None:
        """None if nothing is written down; ValueError, with the file's name, if it is damaged."""
        path = self._manifest(reference)
        try:
            content = files.read_json(path)
        except FileNotFoundError:
            return None
        try:
            found = manifest.from_json(content)
        except ValueError as error:
            raise ValueError(f"{path}: damaged ({error})") from error
        if found.reference != reference:
            raise ValueError(f"{path}: damaged (it is about {found.reference!r:.200})")
        return found

    def read_or_set_aside(self, reference: str) -> Manifest | None:
        """As `read`, but a damaged file gets another name. The lock of the image must be held."""
        try:
            return self.read(reference)
        except ValueError as error:
            aside = f"{self._manifest(reference)}.damaged.{time.time_ns()}"
            os.rename(self._manifest(reference), aside)
            log.warning("%s; it is set aside as %s and written anew", error, aside)
            return None

    def write(self, described: Manifest) -> None:
        files.write_json(self._manifest(described.reference), manifest.to_json(described))

    def forget(self, reference: str) -> None:
        self._manifest(reference).unlink(missing_ok=True)

    def references(self) -> list[str]:
        """Of the images about which something is written down."""
        found = (self.folder / "images").glob(f"*{SUFFIX}")
        return sorted(unquote(path.name.removesuffix(SUFFIX)) for path in found)

    def build_log(self, reference: str) -> Path:
        path = self.folder / "logs" / f"{quote(reference, safe='')}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _manifest(self, reference: str) -> Path:
        return self.folder / "images" / f"{quote(reference, safe='')}{SUFFIX}"


def open_store(state: Path, daemon: str) -> Store:
    """The files about the images of one daemon, by its id."""
    return Store(state / hashlib.sha256(daemon.encode()).hexdigest()[:12])


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
