"""Access to the agent's files, with the agent's rights and without following links, and to the user
accounts of the machine.

Accounts are parsed from /etc/passwd and /etc/group, because the C library's lookup functions would
load code from the image.
"""

import contextlib
import fcntl
import itertools
import json
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from . import kernel

WORK = "/work"
BATCH = 1000
LABELS = "security."  # attributes that the kernel itself sets, and the agent cannot
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def start_of(path: str) -> int:
    """Opens the directory that `path` starts from."""
    return os.open("/" if path.startswith("/") else WORK, os.O_PATH)


def descend(parent: int, name: str) -> int:
    """Opens the subdirectory `name`, which must not be a link, and closes `parent`."""
    try:
        with naming_links(parent, name):
            return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


@contextlib.contextmanager
def naming_links(parent: int, name: str) -> Iterator[None]:
    """In its block, an error of opening `name` says so if that is a link."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
                error.strerror = f"{name!r} is a symbolic link, and links are not followed"
        raise


def enter_or_make(parent: int, name: str) -> int:
    """As `descend`, but creates the directory if it is missing."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        pass
    except OSError:
        os.close(parent)
        raise
    return descend(parent, name)


def open_regular(path: str) -> BinaryIO:
    *directories, name = [part for part in path.split("/") if part]
    parent = start_of(path)
    for part in directories:
        parent = descend(parent, part)
    try:
        with naming_links(parent, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(2, "not a regular file")
    return open(fd, "rb")


def create(path: str, directory: str) -> BinaryIO:
    """Opens a new file below `directory` for writing; replaces one that exists."""
    *directories, name = path.split("/")
    parent = os.open(directory, os.O_PATH)
    for part in directories:
        parent = enter_or_make(parent, part)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return open(os.open(name, flags, 0o644, dir_fd=parent), "wb")
    finally:
        os.close(parent)


def make_directories(path: str) -> None:
    """Creates `path` (absolute, or relative to WORK) and its parents, without following links."""
    parent = start_of(path)
    for part in filter(None, path.split("/")):
        parent = enter_or_make(parent, part)
    os.close(parent)


def empty_directory(path: str, user: int, but: set[str]) -> None:
    """Makes `path` a directory of `user` that is empty except for `but`, and replaces links, files
    and inaccessible directories at or in its way. No process of the agent may be alive."""
    parent = os.open("/", os.O_PATH)
    for part in filter(None, path.split("/")):
        parent = enter_whatever_it_is(parent, part)
    os.close(parent)
    empty(path, 0o700, user, but)


def enter_whatever_it_is(parent: int, name: str) -> int:
    """As `enter_or_make`, but replaces non-directories and makes directories accessible first."""
    try:
        mode = os.lstat(name, dir_fd=parent).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(name, dir_fd=parent)
        elif mode & 0o700 != 0o700:
            os.chmod(name, stat.S_IMODE(mode) | 0o700, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError:
        os.close(parent)
        raise
    return enter_or_make(parent, name)


def list_directory(path: str, max_entries: int, max_bytes: int) -> list[dict]:
    """Lists a directory, as `describe_entry` does. It stops at `max_entries`, or at `max_bytes` of
    JSON."""
    entries, room = [], max_bytes
    directory = open_directory(path)
    try:
        with os.scandir(directory) as found:
            for entry in itertools.islice(found, max_entries):
                try:
                    described = describe_entry(entry)
                except FileNotFoundError:  # it was removed meanwhile
                    continue
                room -= len(json.dumps(described)) + len(", ")  # of the last one: the brackets
                if room < 0:
                    break
                entries.append(described)
    finally:
        os.close(directory)
    return sorted(entries, key=lambda entry: entry["name"])


def open_directory(path: str) -> int:
    parent = start_of(path)
    for part in filter(None, path.split("/")):
        parent = descend(parent, part)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    finally:
        os.close(parent)


def describe_entry(entry: os.DirEntry) -> dict:
    status = entry.stat(follow_symlinks=False)
    return {
        "name": os.fsencode(entry.name).decode("utf-8", "replace"),
        "kind": KINDS.get(stat.S_IFMT(status.st_mode), "other"),
        "bytes": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modified": int(status.st_mtime),
    }


def empty(directory: str, mode: int, user: int, but: set[str]) -> None:
    """Removes everything in `directory` except `but`, and makes it as a new one: of `user` and its
    group, without attributes. No process of the agent may be alive.

    Subdirectories are moved up to the top before they are removed, so that a deep tree needs
    neither recursion nor many open files. Inaccessible ones are made accessible first.
    """
    os.chmod(directory, mode)
    prefix, serial = os.urandom(8).hex(), 0
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    while names := some_names(top, but):
        for name in names:
            if unlinked(name, top):
                continue
            inner_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            while inners := some_names(inner_fd):
                for inner in inners:
                    if not unlinked(inner, inner_fd):
                        serial += 1
                        os.rename(inner, f"{prefix}{serial}", src_dir_fd=inner_fd, dst_dir_fd=top)
            os.close(inner_fd)
            os.rmdir(name, dir_fd=top)
    _forget_attributes(top)
    if os.fstat(top)[stat.ST_UID : stat.ST_GID + 1] != (user, user):
        os.fchown(top, user, user)
    os.fchmod(top, mode)  # access lists and owners change it
    os.utime(top)
    os.close(top)


def attributes(fd: int) -> dict[str, bytes]:
    """The extended attributes of a file, access lists among them, and its flags (chattr)."""
    found = {name: os.getxattr(fd, name) for name in os.listxattr(fd)}
    return found | {"flags": _flags(fd)}


def _forget_attributes(fd: int) -> None:
    for name in os.listxattr(fd):
        if not name.startswith(LABELS):
            os.removexattr(fd, name)
    if any(_flags(fd)):
        fcntl.ioctl(fd, SET_FLAGS, bytes(4))


def _flags(fd: int) -> bytes:
    try:
        return fcntl.ioctl(fd, GET_FLAGS, bytes(4))
    except OSError:  # a file system without flags
        return b""


def some_names(directory: int, but: set[str] = frozenset()) -> list[str]:
    """Names of at most BATCH entries, since all of them might not fit into memory."""
    with os.scandir(directory) as entries:
        wanted = (entry.name for entry in entries if entry.name not in but)
        return list(itertools.islice(wanted, BATCH))


def unlinked(name: str, parent: int) -> bool:
    """Removes a file. For a directory, makes it accessible instead and returns False."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=parent)
        return False
    return True


MAX_BYTES = 1 << 20
# The user of the runner where the agent is root, and its group in the maps of a root on disk: no
# image has them.
RUNNER_ID = 2_000_000_000


class Account(NamedTuple):
    """A user account. groups: supplementary group ids."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str

    def variables(self) -> dict[str, str]:
        names = {"USER": self.name, "LOGNAME": self.name}
        return names | {"HOME": self.home, "SHELL": self.shell or "/bin/sh"}


def find(name: str) -> Account:
    """Errors: LookupError if there is no such user, the sandbox does not map the user id, or it is
    the runner's: an agent that may write to /etc could name any."""
    for row in _rows("/etc/passwd", 7):
        if row[0] == name:
            uid, gid = int(row[2]), int(row[3])
            if RUNNER_ID in (uid, gid):
                raise LookupError(f"user {name!r:.80} has the id {RUNNER_ID}, which is reserved")
            if not is_mapped(uid):
                raise LookupError(f"user id {uid} does not exist in this sandbox: use Docker")
            members = [(int(row[2]), row[3].split(",")) for row in _rows("/etc/group", 4)]
            groups = [group for group, names in members if name in names]
            return Account(name, uid, gid, groups, *row[5:])
    raise LookupError(f"there is no user {name!r:.80}: add it first, for example with useradd")


def _rows(path: str, width: int) -> list[list[str]]:
    """The well-formed rows. An agent with user root may have written anything into the file."""
    with open_regular(path) as file:
        text = file.read(MAX_BYTES).decode("utf-8", "replace")
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) == width and row[2].isdecimal()]


def is_mapped(uid: int) -> bool:
    """Whether `uid` exists here. Without privileges on the host, a sandbox has only one user id."""
    spans = [tuple(map(int, line.split())) for line in kernel.read("self/uid_map").splitlines()]
    return any(first <= uid < first + count for first, _, count in spans)
