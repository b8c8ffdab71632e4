"""Puts clients into an image of Debian, by the lines of their recipes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gateway.catalogue import Client

MOST_S = 900.0  # of a step
RELEASE = "trixie"  # OpenHands needs Python 3.12, which the release before it does not have
PACKAGES = ("python3-pytest", "python3-venv", "procps", "nodejs", "npm", "git")
IMAGE = "ale-gateway"
# This machine's, by which its clients of registries find and trust them.
SHARED = ("/etc/resolv.conf", "/etc/ssl")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotInstalled(Exception):
    """Why a client cannot be had here."""


def install(client: Client, folder: Path) -> str:
    """Runs the line of a client's recipe, if that was not done before. Returns its version.

    NotInstalled if it cannot be had.
    """
    base = _whole(folder / "base", _bootstrap)

    def run_line(place: Path) -> None:
        place.mkdir()
        root = ["bwrap", "--ro-bind", str(base), "/", "--dev", "/dev", "--proc", "/proc"]
        shared = [word for path in SHARED for word in ("--ro-bind", path, path)]
        empty = [word for path in ("/tmp", "/root", "/opt") for word in ("--tmpfs", path)]
        written = ["--bind", str(place.absolute()), f"/opt/{client.name}"]
        variables = ["--setenv", "PATH", PATH, "--setenv", "HOME", "/root"]
        _run([*root, *shared, *empty, *written, *variables, "sh", "-c", client.recipe.install])

    place = _whole(folder / client.name, run_line)
    return _version(place, client.recipe.package)


def build_image(client: Client, folder: Path) -> str:
    """Returns the image that has an installed client. NotInstalled if it cannot be built."""
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
        _run(["sh", "-c", f'tar -c -C "$0" . | docker import - {IMAGE}', str(folder / "base")])
    recipe, image = folder / f"{client.name}.Dockerfile", f"{IMAGE}-{client.name}"
    recipe.write_text(f"FROM {IMAGE}\nCOPY . /opt/{client.name}\n")
    line = ["docker", "build", "--quiet", "--network=none", "-t", image, "-f", str(recipe)]
    _run([*line, str(folder / client.name)])
    return image


def _bootstrap(root: Path) -> None:
    _run(["debootstrap", "--variant=minbase", RELEASE, str(root)])
    # Not by debootstrap, which does not find all that npm depends on.
    get = ["apt-get", "install", "--yes", "--no-install-recommends"]
    _run(["chroot", str(root), *get, *PACKAGES])
    (root / "work").mkdir()
    with (root / "etc" / "passwd").open("a") as users:
        users.write("agent:x:1000:1000::/work:/bin/bash\n")
    # A container gets its own devices, and these cannot be copied into an image.
    shutil.rmtree(root / "dev")
    (root / "dev").mkdir()


def _whole(place: Path, make: Callable[[Path], None]) -> Path:
    """Returns the folder, which `make` has made."""
    if not place.is_dir():
        # Under another name until it is whole, as half a client would be taken for one.
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        make(partial)
        partial.rename(place)
    return place


def _version(place: Path, package: str) -> str:
    about = place / "lib" / "node_modules" / package / "package.json"
    if about.exists():
        return json.loads(about.read_text())["version"]
    name = package.replace("-", "_")
    (found, *_) = sorted(place.glob(f"lib/python3*/site-packages/{name}-*.dist-info"))
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


def _run(line: Sequence[str]) -> None:
    print(" ".join(line), file=sys.stderr, flush=True)
    try:
        ended = subprocess.run(line, capture_output=True, text=True, timeout=MOST_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if ended.returncode:
        raise NotInstalled(f"{line[0]}: {ended.stderr.strip()[-300:]}")
