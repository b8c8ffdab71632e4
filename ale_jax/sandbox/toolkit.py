"""The host's python3, bash and tar, packed so that they run in any image (with glibc, musl or no
libc), and the Docker volume that mounts them read-only into every container.

    ld.so                      the host's dynamic loader, which starts the programs
    lib/                       the shared libraries of the programs
    bin/python3, bash, tar
    certificates.pem           the host's CA certificates, if it has any
    python/lib/pythonX.Y/      only the modules that the runner imports
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import posixpath
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import docker
from docker.errors import NotFound

from ale_jax.sandbox.hub.daemon import unstarted
from ale_jax.sandbox.runner.processes import BUNDLES, PACKED_BUNDLE

HOME = "/.ale"
PROGRAMS = ("bash", "tar")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LISTING_S = 30.0
# The modules that `runner/` and its loader import.
MODULES = (
    *("collections", "contextlib", "ctypes", "errno", "fcntl", "heapq", "itertools", "json", "os"),
    *("re", "resource", "select", "signal", "socket", "stat", "struct", "sys", "termios", "time"),
    *("types", "typing", "encodings.utf_8", "encodings.ascii", "encodings.latin_1"),
)
LISTING = f"""
import importlib, json, sys
for name in {MODULES!r}:
    importlib.import_module(name)
files = {{getattr(module, "__file__", None) for module in sys.modules.values()}}
print(json.dumps(sorted(files - {{None}})))
"""


def python(*arguments: str) -> list[str]:
    """The command that starts the packed python3. It needs the variables of `environment`."""
    return [f"{HOME}/ld.so", "--library-path", f"{HOME}/lib", f"{HOME}/bin/python3", *arguments]


# The commands that start the packed programs.
PROGRAM_COMMANDS = {
    name: [f"{HOME}/ld.so", "--library-path", f"{HOME}/lib", f"{HOME}/bin/{name}"]
    for name in PROGRAMS
}


def environment() -> dict[str, str]:
    """Variables for the packed python3; they override those that the image may set."""
    return {"PYTHONHOME": f"{HOME}/python", "PYTHONPATH": ""}


@cache
def archive() -> tuple[str, bytes]:
    """Returns the toolkit's address, a hash over names and contents, and its tar archive.

    Errors: OSError or ValueError if this host has no glibc or lacks a program.
    """
    with tempfile.TemporaryDirectory(prefix="ale-toolkit-") as folder:
        root = Path(folder)
        _collect(root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
        return digest.hexdigest()[:12], _pack(root)


def _collect(root: Path) -> None:
    for part in ("bin", "lib", f"python/lib/{VERSION}/lib-dynload"):
        (root / part).mkdir(parents=True)
    binaries = {"python3": Path(sys.executable).resolve()}
    binaries |= {name: _which(name) for name in PROGRAMS}
    for name, binary in binaries.items():
        shutil.copy(binary, root / "bin" / name)
    shutil.copy(_loader(binaries["python3"]), root / "ld.so")
    if bundle := next(filter(Path.exists, map(Path, BUNDLES)), None):
        shutil.copy(bundle, root / posixpath.basename(PACKED_BUNDLE))
    modules = [Path(m) for m in json.loads(_run([sys.executable, "-I", "-S", "-c", LISTING]))]
    for module in modules:
        _copy_module(module, root / "python" / "lib" / VERSION)
    extensions = [module for module in modules if module.suffix == ".so"]
    for library in {each for file in (*binaries.values(), *extensions) for each in _linked(file)}:
        shutil.copy(library, root / "lib" / library.name)  # the name that the loader looks for


def _copy_module(source: Path, home: Path) -> None:
    if source.suffix == ".so":
        shutil.copy(source, home / "lib-dynload" / source.name)
        return
    _, _, inner = str(source).rpartition(f"/lib/{VERSION}/")
    if not inner:
        raise ValueError(f"{source} is not below a lib/{VERSION}: cannot pack this python")
    target = home / inner
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    # Compile once here, and never compare with the source in the container: otherwise this takes
    # most of the start time.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(target), dfile=inner, invalidation_mode=mode, doraise=True)


def _loader(binary: Path) -> Path:
    found = re.search(r"(/\S*ld-linux\S*)", _run(["ldd", str(binary)]))
    if not found:
        raise ValueError(f"{binary} is not linked with glibc: images need a python3 of their own")
    return Path(found[1])


def _linked(binary: Path) -> Iterator[Path]:
    for path in re.findall(r"=> (/\S+)", _run(["ldd", str(binary)])):
        yield Path(path)


def _which(name: str) -> Path:
    found = shutil.which(name)
    if not found:
        raise ValueError(f"this host has no {name}: apt-get install {name}")
    return Path(found).resolve()


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=LISTING_S
    ).stdout


def _pack(root: Path) -> bytes:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, arcname=".", filter=plain)
    return packed.getvalue()


LABEL = "ale.toolkit"
MARK = "complete"  # a file that is written last


def ensure_volume(api: docker.APIClient, image: str) -> str:
    """Returns the name of the toolkit's volume; creates and fills it if needed.

    image: any image that the daemon has.

    Errors: those of `toolkit.archive` and of the daemon.
    """
    address, packed = archive()
    name = f"ale-toolkit-{address}"
    api.create_volume(name, labels={LABEL: address})
    with _container(api, image, name) as container:
        if not _is_complete(api, container):
            with _one_at_a_time(address):
                _fill(api, container, packed)
    return name


def volume_binding(name: str, mode: str = "ro") -> str:
    """The binding with which a container mounts the volume."""
    return f"{name}:{HOME}:{mode}"


def _fill(api: docker.APIClient, container: str, packed: bytes) -> None:
    if not _is_complete(api, container):  # another process may have filled it meanwhile
        api.put_archive(container, HOME, packed)
        api.put_archive(container, HOME, _mark())


@contextmanager
def _one_at_a_time(address: str) -> Iterator[None]:
    """Excludes the other processes of this host, of all users: a second one would replace files
    while sandboxes start from them. The kernel frees the lock if its holder dies. Errors: OSError.
    """
    lock = _open_lock(Path(tempfile.gettempdir()) / f"ale-toolkit-{address}.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    """Opens a file in a directory where everybody may create files. It is only read, which a lock
    permits, so whatever somebody has put there cannot be changed through this process."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_NONBLOCK  # else a FIFO would have to be opened by a writer, too
    with suppress(FileExistsError):
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(lock, 0o644)  # others must be able to open it, whatever the umask
        return lock
    try:
        return os.open(path, flags)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}: remove it") from error


@contextmanager
def _container(api: docker.APIClient, image: str, volume: str) -> Iterator[str]:
    """A container that is never started, for reading and writing the volume."""
    binds = api.create_host_config(binds=[volume_binding(volume, "rw")], network_mode="none")
    with unstarted(api, image, host_config=binds, labels={LABEL: "filling"}) as container:
        yield container


def _is_complete(api: docker.APIClient, container: str) -> bool:
    try:
        stream, _ = api.get_archive(container, f"{HOME}/{MARK}")
    except NotFound:
        return False
    stream.close()
    return True


def _mark() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(MARK))
    return packed.getvalue()
