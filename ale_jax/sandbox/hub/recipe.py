"""Recipes of images: a folder with a Dockerfile or a script build.sh, named by its content. A
Dockerfile is checked for everything that it would fetch.

The daemon always pulls a base that is missing, so the bases are checked first. The syntax is that
of Docker's classic builder.

The address covers everything in the folder. Of a file's mode it covers what git keeps (executable
or not), so that it is the same on every machine. It does not cover the base: to pin one, write its
address, `FROM ale/shell:HASH`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ale_jax import files
from ale_jax.sandbox.hub import store

_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_STAGE = re.compile(r"(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_FROM_OPTION = re.compile(r"--from=(\S+)")
_NETWORK_SOURCE = re.compile(r"://|\bgit@|\$")


def base_images(text: str) -> tuple[str, ...]:
    """Returns the images that a Dockerfile needs, without its own stages. ValueError if unclear."""
    stages, bases = {"scratch"}, dict[str, None]()
    for keyword, rest in instructions(text):
        if keyword == "FROM":
            if not (found := _STAGE.fullmatch(rest)):
                raise ValueError(f"cannot read the line 'FROM {rest}'")
            wanted, stage = found[1], found[2]
        elif keyword == "COPY" and (found := _FROM_OPTION.search(rest)):
            wanted, stage = found[1], None
        else:
            continue
        if "$" in wanted:
            raise ValueError(f"{keyword} names {wanted!r}; write the image's name, not a variable")
        if wanted.lower() not in stages and not (keyword == "COPY" and wanted.isdecimal()):
            bases[wanted] = None
        if stage:
            stages.add(stage.lower())
    return tuple(bases)


def network_sources(text: str) -> tuple[str, ...]:
    """Returns the ADD instructions whose source is, or may be, remote: the daemon fetches it."""
    return tuple(
        f"{keyword} {rest}"
        for keyword, rest in instructions(text)
        if keyword == "ADD" and _NETWORK_SOURCE.search(rest)
    )


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yields (keyword in capitals, rest on one line) of a Dockerfile, without comments and empty
    lines. ValueError if it has another escape character than the backslash."""
    if (found := _ESCAPE.match(text.lstrip())) and found[1] != "\\":
        raise ValueError(f"the directive escape={found[1]} is not supported; use the backslash")
    logical = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        logical += line.removesuffix("\\")
        if not line.endswith("\\") and logical.strip():
            yield _split(logical)
            logical = ""
    if logical.strip():
        yield _split(logical)


def _split(logical: str) -> tuple[str, str]:
    keyword, *rest = logical.split(maxsplit=1)
    arguments = rest[0].strip() if rest else ""
    if keyword.upper() == "ONBUILD" and arguments:
        return _split(arguments)
    return keyword.upper(), arguments


DOCKERFILE, SCRIPT, SETTINGS, IGNORE = "Dockerfile", "build.sh", "recipe.json", ".dockerignore"
MAX_ENTRIES = 10_000
MAX_BYTES = 1 << 30
MAX_TEXT_BYTES = 1 << 20
MAX_BUILD_S = 24 * 3600.0
# Change it to give every folder a new address.
SCHEME = b"ale recipe 1\0"
FILE, FOLDER, LINK = "file", "folder", "link"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a recipe's file recipe.json may set.

    network: of a Dockerfile's RUN instructions: "none", "default" (the daemon's), or "host". A
    script uses the network of the user who runs it.
    build_seconds: time limit of a build.
    """

    network: str = "none"
    build_seconds: float = 1200.0

    def __post_init__(self):
        if self.network not in ("none", "default", "host"):
            raise ValueError(f"network {self.network!r} must be one of none, default, host")
        seconds = self.build_seconds
        if not (type(seconds) in (int, float) and 0 < seconds <= MAX_BUILD_S):
            raise ValueError(f"build_seconds {seconds!r} must be in (0, {MAX_BUILD_S:g}]")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file, folder or link in a recipe's folder. path: relative to that folder.

    content: SHA-256 of a file in hexadecimal digits, target of a link, empty for a folder.
    """

    path: str
    kind: str
    executable: bool
    content: str


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe that was read: how to build its image, and the names of the image.

    name: as in "ale-NAME". kind: DOCKERFILE or SCRIPT. address: the first digits of the content's
    SHA-256. bases: images that a Dockerfile starts from.
    """

    name: str
    folder: Path
    kind: str
    address: str
    settings: Settings
    bases: tuple[str, ...]

    @property
    def reference(self) -> str:
        return store.reference(self.name, self.address)

    @property
    def moving(self) -> str:
        return f"ale-{self.name}"


def read_recipe(name: str, folder: Path) -> Recipe:
    """Reads the recipe of the image ale-`name`. ValueError if the folder is not a recipe."""
    try:
        return _read_recipe(name, folder.absolute())
    except OSError as error:
        reason = f"cannot be read ({error}); make it readable, or remove it"
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"recipe {folder} of image 'ale-{name}': {reason}")


def content_address(folder: Path) -> str:
    """Returns the address of the current content. ValueError or OSError if it is not a recipe."""
    return _address(_scan(folder))


def write_context(folder: Path, file: BinaryIO) -> None:
    """Writes `folder` as the tar file of a build, with exactly what the address covers."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in _scan(folder):
            _add(archive, folder, entry)


def _read_recipe(name: str, folder: Path) -> Recipe:
    entries = _scan(folder)
    found = {entry.path: entry for entry in entries if entry.kind == FILE}
    kinds = [kind for kind in (DOCKERFILE, SCRIPT) if kind in found]
    if len(kinds) != 1:
        raise ValueError(f"must hold one file {DOCKERFILE} or {SCRIPT}, holds {kinds or 'neither'}")
    (kind,) = kinds
    settings, bases = Settings(), ()
    if SETTINGS in found:
        settings = _read_settings(folder / SETTINGS, kind)
    if kind == SCRIPT and not found[SCRIPT].executable:
        raise ValueError(f"{SCRIPT} is not executable; type: chmod +x {folder / SCRIPT}")
    if kind == DOCKERFILE:
        bases = _read_dockerfile(folder, settings)
    return Recipe(name, folder, kind, _address(entries), settings, bases)


def _read_settings(path: Path, kind: str) -> Settings:
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{SETTINGS} must hold an object, holds {type(content).__name__}")
    known = [field.name for field in dataclasses.fields(Settings)]
    if kind == SCRIPT:
        known.remove("network")  # it cannot be enforced for a script
    if unknown := sorted(content.keys() - set(known)):
        raise ValueError(f"{SETTINGS} has {unknown}; a {kind} recipe knows {known}")
    return Settings(**content)


def _read_dockerfile(folder: Path, settings: Settings) -> tuple[str, ...]:
    if os.path.lexists(folder / IGNORE):
        raise ValueError(
            f"has a {IGNORE}, but a recipe's address and build include all its files; "
            f"move out what the image does not need, and the {IGNORE}"
        )
    if (size := (folder / DOCKERFILE).stat().st_size) > MAX_TEXT_BYTES:
        raise ValueError(f"{DOCKERFILE} has {size} bytes; at most {MAX_TEXT_BYTES} are read")
    text = (folder / DOCKERFILE).read_text("utf-8")
    if settings.network == "none" and (fetched := network_sources(text)):
        raise ValueError(
            f"'{fetched[0]}' would use the network; put the file into the folder, "
            f'or {{"network": "default"}} into {SETTINGS}'
        )
    return base_images(text)


def _scan(folder: Path) -> list[Entry]:
    """Lists `folder` in a stable order. ValueError except for files, folders and inner links."""
    root = os.path.realpath(folder)
    entries, waiting, left = [], [""], MAX_BYTES
    while waiting:
        with os.scandir(os.path.join(root, waiting.pop())) as found:
            for each in found:
                path = os.path.relpath(each.path, root)
                status = each.stat(follow_symlinks=False)
                left -= status.st_size if stat.S_ISREG(status.st_mode) else 0
                if left < 0 or len(entries) == MAX_ENTRIES:
                    raise ValueError(
                        f"holds more than {MAX_ENTRIES} entries or {MAX_BYTES >> 20} MiB; "
                        "move out what the image does not need"
                    )
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                entries.append(_entry(root, path, status.st_mode))
    return sorted(entries, key=lambda entry: os.fsencode(entry.path))


def _entry(root: str, path: str, mode: int) -> Entry:
    if stat.S_ISDIR(mode):
        return Entry(path, FOLDER, True, "")
    if stat.S_ISLNK(mode):
        return Entry(path, LINK, False, _inner_target(root, path))
    if stat.S_ISREG(mode):
        with _open(root, path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Entry(path, FILE, bool(mode & stat.S_IXUSR), digest)
    raise ValueError(f"{path!r} is neither file, folder nor link; remove it")


def _inner_target(root: str, path: str) -> str:
    """Returns a link's target. ValueError if it leads out of the folder, now or in the image."""
    target = os.readlink(os.path.join(root, path))
    real = os.path.realpath(os.path.join(root, path))
    if os.path.isabs(target) or os.path.commonpath([root, real]) != root:
        raise ValueError(f"{path!r} is a link out of the folder, to {target!r}; copy its target")
    return target


def _open(root: str | Path, path: str) -> BinaryIO:
    # The file may have been replaced by a link or a FIFO: do not follow or wait for one.
    fd = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(fd, "rb")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise ValueError(f"{path!r} was replaced while it was read")
    return file


def _address(entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256(SCHEME)
    for entry in entries:
        # Unambiguous: no field contains a zero byte, and every entry has as many of them.
        fields = (entry.kind, "x" if entry.executable else "-", entry.path, entry.content)
        digest.update(b"".join(os.fsencode(field) + b"\0" for field in fields))
    return digest.hexdigest()[: store.ADDRESS_DIGITS]


def _add(archive: tarfile.TarFile, folder: Path, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode = 0o755 if entry.executable else 0o644
    if entry.kind == FOLDER:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif entry.kind == LINK:
        info.type, info.linkname = tarfile.SYMTYPE, entry.content
        archive.addfile(info)
    else:
        with _open(folder, entry.path) as file:
            info.size = os.fstat(file.fileno()).st_size
            archive.addfile(info, file)
