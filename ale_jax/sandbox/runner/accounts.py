"""The users of a machine, from its own files: the C library would load code of the image's."""

from typing import NamedTuple

from .files import read_regular

MAX_BYTES = 1 << 20


class Account(NamedTuple):
    """groups: the further ones."""

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
    """LookupError if there is none of that name, or the machine has no such user id."""
    for row in _rows("/etc/passwd", 7):
        if row[0] == name:
            uid, gid = int(row[2]), int(row[3])
            if not _is_mapped(uid):
                raise LookupError(f"user id {uid} does not exist in this sandbox: use Docker")
            members = [(int(row[2]), row[3].split(",")) for row in _rows("/etc/group", 4)]
            groups = [group for group, names in members if name in names]
            return Account(name, uid, gid, groups, *row[5:])
    raise LookupError(f"there is no user {name!r:.80}: add it first, with useradd say")


def _rows(path: str, width: int) -> list[list[str]]:
    """Whoever is root inside may have written anything there."""
    text = read_regular(path, MAX_BYTES).decode("utf-8", "replace")
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) == width and row[2].isdecimal()]


def _is_mapped(uid: int) -> bool:
    """Without privileges on the host, a sandbox has one user id."""
    with open("/proc/self/uid_map") as ranges:
        spans = [tuple(map(int, line.split())) for line in ranges]
    return any(first <= uid < first + count for first, _, count in spans)
