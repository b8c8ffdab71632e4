"""The files of images, unpacked once per host, for sandboxes that do not run in Docker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.hub import daemon
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.shared_folders import SharedFolders

UNPACK_S = 3600.0
IMAGES, TOOLS = "images", "tools"
MAX_WORDS = 1000


class ImageFiles:
    """Directories with the files of images, which all processes of this host share.

    directory: has the directories `IMAGES`, which only root may enter, since images contain
        set-user-id programs, and `TOOLS`. Errors: SandboxStartError.
    """

    def __init__(self, directory: Path):
        self._images, self._tools = directory / IMAGES, directory / TOOLS
        self._folders = SharedFolders()

    def ensure(self, image: str) -> Path:
        """Returns the files of an image; builds and unpacks it if needed.

        Errors: ValueError for an invalid recipe.
        """
        Hub().ensure(image)
        with daemon.connect(UNPACK_S) as api:
            found = daemon.find(api, image)
            if found is None:
                raise ImageMissing(f"image {image!r} has just been removed; build it again")
            name = found.id.rpartition(":")[2]
            return self._ensure(self._images / name, lambda target: _export(api, found, target))

    def ensure_toolkit(self) -> Path:
        """Returns the programs that are mounted into every sandbox."""
        address, packed = toolkit.archive()
        return self._ensure(self._tools / address, lambda target: _extract([packed], target))

    def prune(self) -> list[str]:
        """Removes the files of images that the daemon no longer has and no process uses; returns
        the images' ids."""
        names = [path.name for path in self._images.iterdir() if path.is_dir()]
        with daemon.connect() as api:
            gone = [name for name in names if daemon.find(api, name) is None]
        return [name for name in gone if self._folders.remove(self._images / name)]

    def _ensure(self, target: Path, fill: Callable[[Path], None]) -> Path:
        try:
            return self._folders.ensure(target, fill)
        except (*daemon.TROUBLE, ValueError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"cannot unpack {target}: {error}") from error


def _export(api: daemon.Daemon, image: daemon.Image, target: Path) -> None:
    with daemon.unstarted(api, image.id) as container:
        _extract(api.export(container), target)


def _extract(archive: Iterable[bytes], target: Path) -> None:
    # The daemon packs the files of a container, so nobody chose the entries of this archive; and
    # tar does not write through a link that it has just unpacked.
    line = ["tar", "--extract", "--numeric-owner", "--preserve-permissions"]
    line += ["--directory", str(target)]
    # With a pipe for its warnings, tar would wait for us to read them, and we for it to read.
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=said) as tar:
            with contextlib.suppress(BrokenPipeError), tar.stdin:
                for piece in archive:
                    tar.stdin.write(piece)
        if tar.returncode:
            said.seek(max(0, said.seek(0, os.SEEK_END) - MAX_WORDS))
            words = said.read().decode(errors="replace").strip()
            raise OSError(f"tar ended with status {tar.returncode}: {words}")
