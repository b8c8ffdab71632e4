"""Archives and forms from untrusted senders: read completely and checked before they are used."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import posixpath
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, FormParser, parse_options_header

MAX_PARTS = 1024
IN_MEMORY = {"MAX_MEMORY_FILE_SIZE": math.inf, "MAX_BODY_SIZE": math.inf}  # the body is, too


@dataclasses.dataclass(frozen=True)
class Part:
    """filename: empty if the sender gave none."""

    name: str
    filename: str
    data: bytes


def parse_form(content_type: str, body: bytes) -> list[Part]:
    """Returns the parts in the order sent. Errors: ValueError."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise ValueError(f"content-type {content_type!r:.140} must be multipart/form-data")
    parts: list[Part] = []
    is_whole = False

    def add(name: bytes | None, filename: bytes | None, data: bytes) -> None:
        if len(parts) == MAX_PARTS:
            raise ValueError(f"the form has more than {MAX_PARTS} parts: send it in parts")
        if b"\r\n--" + boundary in data:  # not allowed, and other readers would end the part there
            raise ValueError("the form's boundary is in its data")
        parts.append(Part(_text(name), _text(filename), data))

    def end() -> None:
        nonlocal is_whole
        is_whole = True

    form = FormParser(
        "multipart/form-data",
        on_field=lambda field: add(field.field_name, b"", field.value or b""),
        on_file=lambda file: add(file.field_name, file.file_name, _content(file)),
        on_end=end,
        boundary=boundary,
        config=IN_MEMORY,
    )
    try:
        form.write(body)
        form.finalize()
    except FormParserError as error:
        raise ValueError(f"the form is malformed: {error}") from error
    if not is_whole:
        raise ValueError("the last boundary of the form is missing")
    return parts


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def _content(file: File) -> bytes:
    file.file_object.seek(0)
    return file.file_object.read()


MAX_MEMBERS = 20_000
MAX_BYTES = 256 << 20
# Python makes objects of these that take far more memory than their bytes.
MAX_HEADERS = 1 << 16  # bytes of headers, and of the map of a sparse file, of one member
MAX_GLOBAL = 64  # fields for all members, which tarfile copies into each of them
MAX_DEPTH = 256  # directories in each other; Python makes and lists them by recursion
OWNERS = 0o700  # of every directory, so that what is in it can be written
LATEST = 1 << 35  # seconds from 1970, beyond what every file system keeps


class _Headers(io.BytesIO):
    """An archive of which tarfile may read MAX_HEADERS bytes before `left` is set again. While it
    goes from one member to the next, it reads only their headers."""

    left = MAX_HEADERS

    def read(self, size: int | None = -1) -> bytes:
        """Errors: HeaderError."""
        if size is None or not 0 <= size <= self.left:
            words = "headers (attributes, names and holes): pack it without"
            raise tarfile.HeaderError(f"a member has more than {MAX_HEADERS} bytes of {words}")
        self.left -= size
        return super().read(size)


def checked(archive: bytes, max_bytes: int = MAX_BYTES) -> list[tarfile.TarInfo]:
    """Returns the members of `archive`: regular files and directories below its root, and links to
    what is below it.

    Errors: ValueError for anything else: another link, a device, an absolute path, `..`, a path
    through a link, more than MAX_MEMBERS members, more than `max_bytes` when unpacked, more than
    MAX_HEADERS bytes of headers for a member, more than MAX_GLOBAL fields for all of them, or not a
    plain tar at all.
    """
    members, size, headers = [], 0, _Headers(archive)
    try:
        with tarfile.open(fileobj=headers, mode="r:") as tar:
            for member in tar:
                _check(member)
                if len(tar.pax_headers) > MAX_GLOBAL:
                    bounds = f"{MAX_GLOBAL} fields in global headers"
                    raise ValueError(f"archive has more than {bounds}: pack it without")
                _slim(member)
                headers.left = MAX_HEADERS
                members.append(member)
                size += member.size
                if len(members) > MAX_MEMBERS or size > max_bytes:
                    bounds = f"{MAX_MEMBERS} members or {max_bytes} bytes"
                    raise ValueError(f"archive has more than {bounds}: send it in parts")
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise ValueError(f"archive is not a plain tar: {error}") from error
    _check_paths(members)
    return members


def unpack(archive: bytes, directory: str | Path, max_bytes: int = MAX_BYTES) -> None:
    """Writes the members of `archive` below `directory`, which is created if it is missing.

    Files keep their times and permissions, but those that the umask takes away, and never setuid
    and setgid; files that exist are replaced. If a member is refused, nothing is written.

    Errors: ValueError like `checked`, or for a link in `directory` that a member's path would
    follow; OSError.
    """
    members, root = checked(archive, max_bytes), Path(directory).resolve()
    for member in members:
        path = root / member.name
        followed = path if member.isdir() else path.parent  # the rest is replaced
        if followed.resolve() != followed:
            raise ValueError(f"archive is refused: {member.name!r:.140} leads through a link")
    root.mkdir(parents=True, exist_ok=True)
    # Not by extractall: Python 3.11.2, which Debian 12 has, does not know its safe filters.
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            _extract(tar, member, root / member.name)
            _slim(member)
    for member in reversed(members):  # whatever is written into a directory changes its time
        if member.isdir():
            _set_time(root / member.name, member.mtime)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(_mode(member.mode) | OWNERS, parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not member.issym():
        replace_file(path, tar.extractfile(member).read(), member.mode, member.mtime)
        return
    path.unlink(missing_ok=True)
    path.symlink_to(member.linkname)
    _set_time(path, member.mtime)


def replace_file(path: Path, content: bytes, mode: int, modified: float) -> None:
    """Writes a new file, with those permissions of `mode` that the umask leaves. modified: its
    time, in seconds from 1970. OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, _mode(mode)), "wb") as file:
        file.write(content)
    _set_time(path, modified)


def _set_time(path: Path, modified: float) -> None:
    os.utime(path, (modified, modified), follow_symlinks=False)


def pack(directory: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Archives the regular files and directories below `directory`, and links to them, with their
    permissions and times in whole seconds, but without owners.

    Errors: ValueError for another link or a device (naming it), or for more than `max_bytes`;
    OSError.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotADirectoryError(f"{str(directory)!r} is not a directory")
    paths = {path: path.relative_to(root).as_posix() for path in sorted(_below(root))}
    return _packed(paths, max_bytes)


def _below(root: Path) -> Iterator[Path]:
    """Yields all that is below a directory; links are not followed. ValueError beyond MAX_DEPTH."""
    waiting = [(root, 0)]
    while waiting:
        directory, depth = waiting.pop()
        if depth > MAX_DEPTH:
            what = f"is more than {MAX_DEPTH} directories deep"
            raise ValueError(f"{str(directory)!r:.140} {what}: copy a part of it")
        with os.scandir(directory) as entries:
            for entry in entries:
                yield directory / entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((directory / entry.name, depth + 1))


def pack_file(path: str | Path, name: str, max_bytes: int = MAX_BYTES) -> bytes:
    """As `pack`, for a single file, which gets `name` in the archive."""
    if os.path.islink(path):
        where = os.readlink(path)
        raise ValueError(f"{str(path)!r} is a link to {where!r:.140}: name what it leads to")
    return _packed({Path(path): name}, max_bytes)


def _packed(paths: Mapping[Path, str], max_bytes: int) -> bytes:
    buffer, size = io.BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, name in paths.items():
            if path.is_symlink():
                _check_link(repr(str(path)), name, os.readlink(path))
            elif not (path.is_file() or path.is_dir()):
                raise ValueError(f"{str(path)!r} is a device, a pipe or a socket: leave it out")
            size += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
            if size > max_bytes:
                raise ValueError(f"there are more than {max_bytes} bytes up to {str(path)!r}")
            _add(tar, path, name)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    member, status = tarfile.TarInfo(name), path.lstat()
    member.mode, member.mtime = _mode(status.st_mode), int(status.st_mtime)
    if path.is_symlink():
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(member)
        return
    if path.is_dir():
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        return
    content = path.read_bytes()  # at once, so that the size is right even if the file grows
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _mode(rights: int) -> int:
    return rights & 0o777


def _check(member: tarfile.TarInfo) -> None:
    name = f"archive member {member.name!r:.140}"
    if member.islnk():
        where = f"{member.linkname!r:.140}"
        raise ValueError(f"{name} is a hard link to {where}: tar --hard-dereference packs it")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise ValueError(f"{name} is a device, a pipe or a socket: leave it out")
    if member.issym():
        _check_link(name, member.name, member.linkname)
    if not abs(member.mtime) <= LATEST:
        raise ValueError(f"{name} has the time {member.mtime}: give it another one")
    if member.name.startswith("/") or ".." in member.name.split("/") or "\0" in member.name:
        raise ValueError(f"{name} leads out of its directory")
    if (depth := posixpath.normpath(member.name).count("/")) > MAX_DEPTH:
        raise ValueError(f"{name} is {depth} directories deep: use at most {MAX_DEPTH}")
    if member.size < 0:  # what follows it would be what came before it
        raise ValueError(f"{name} has the size {member.size}: pack it again")


def _check_link(told: str, name: str, target: str) -> None:
    """ValueError unless the link `name` of an archive leads to what is below its root. `..` may
    only be at the beginning of the target, as nobody knows what is above a link."""
    words = [word for word in target.split("/") if word not in ("", ".")]
    ups = next((n for n, word in enumerate(words) if word != ".."), len(words))
    depth = posixpath.normpath(name).count("/")
    if not target or target.startswith("/") or ups > depth or ".." in words[ups:]:
        what = f"a link to {target!r:.140}, which may lead out of its directory"
        raise ValueError(f"{told} is {what}: leave it out")


def _check_paths(members: Sequence[tarfile.TarInfo]) -> None:
    """ValueError for a member that is to be written through a link of the archive."""
    count = Counter(posixpath.normpath(member.name) for member in members)
    links = {posixpath.normpath(member.name) for member in members if member.issym()}
    for path in count if links else ():
        if path in links and count[path] > 1:
            raise ValueError(f"archive member {path!r:.140} is a link, and something else as well")
        above = posixpath.dirname(path)
        while above and above not in links:
            above = posixpath.dirname(above)
        if above:
            raise ValueError(f"archive member {path!r:.140} leads through the link {above!r:.140}")


def _slim(member: tarfile.TarInfo) -> None:
    """Drops what is only needed to read it, since tarfile keeps all members."""
    member.pax_headers, member.sparse = {}, None
