"""Gets clients from PyPI and npm, and puts them into an image of their own."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ale_jax.sandbox.spec import SandboxSpec
from benchmarks.gateway.catalogue import INSIDE, NODE, Client

INSTALL_S, BUILD_S = 900.0, 1200.0
PYTHON = "/usr/bin/python3"  # the image's, with which compiled packages must agree
NODE_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")


class NotInstalled(Exception):
    """Why a client cannot be had here."""


def install(client: Client, folder: Path) -> str:
    """Installs a client into a folder of its own, if it is not there. Returns its version.

    NotInstalled if it cannot be had.
    """
    place = folder / client.name
    if not place.is_dir():
        # Under another name until it is whole, as half a client would be taken for one.
        partial = folder / f"{client.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        if client.source == "pypi":
            _run([PYTHON, "-m", "venv", str(partial / "build")])
            pip = [str(partial / "build" / "bin" / "pip"), "install", "--quiet"]
            _run([*pip, "--target", str(partial / "lib"), client.package])
            shutil.rmtree(partial / "build")
        else:
            _run(["npm", "install", "--global", "--prefix", str(partial), client.package])
        partial.rename(place)
    if client.source == "pypi":
        name = client.package.replace("-", "_")
        (found, *_) = sorted((place / "lib").glob(f"{name}-*.dist-info"))
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    about = place / "lib" / "node_modules" / client.package / "package.json"
    return json.loads(about.read_text())["version"]


def build_image(clients: Sequence[Client], folder: Path) -> str:
    """The shell tasks' image with these clients. NotInstalled if it cannot be built."""
    if not (node := shutil.which("node")):
        raise NotInstalled("no node: apt-get install nodejs")
    inside = folder / "node"
    for part in ("bin", "lib"):
        (inside / part).mkdir(parents=True, exist_ok=True)
    shutil.copy(node, inside / "bin" / "node")
    for name in NODE_LIBRARIES:
        found = subprocess.run(["ldd", node], capture_output=True, text=True).stdout.split()
        (path,) = (each for each in found if each.endswith(f"/{name}"))
        shutil.copy(path, inside / "lib" / name)
    lines = [f"FROM {SandboxSpec.image}", f"COPY node {NODE}"]
    for client in clients:
        parts = ("lib",) if client.source == "pypi" else ("bin", "lib")
        lines += [f"COPY {client.name}/{part} {INSIDE}/{client.name}/{part}" for part in parts]
    recipe = "\n".join(lines) + "\n"
    (folder / "Dockerfile").write_text(recipe)
    image = f"ale-gateway-clients:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    _run(["docker", "build", "--quiet", "--network=none", "-t", image, str(folder)], BUILD_S)
    return image


def _run(line: Sequence[str], seconds: float = INSTALL_S) -> None:
    print(" ".join(line), file=sys.stderr, flush=True)
    try:
        ended = subprocess.run(line, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if ended.returncode:
        raise NotInstalled(f"{line[0]}: {ended.stderr.strip()[-300:]}")
