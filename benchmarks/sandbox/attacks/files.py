"""Attacks through files that are copied in and out: climbing paths, links, devices, archives."""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
from pathlib import Path

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.service import uploads
from ale_jax.sandbox.spec import WORK
from benchmarks.sandbox.attacks.attack import (
    AGENT,
    USERS,
    Arena,
    Attack,
    Breach,
    require,
    require_alive,
)

FILES = "files"
UNREADABLE = "a file that it may not read itself"
OBSTACLES = {
    "a link out": "ln -s /etc/passwd x",
    "a link to itself": "ln -s x x",
    "a pipe": "mkfifo x",
    "a device": "ln -s /dev/zero x",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'",
    UNREADABLE: "echo secret > x; chmod 000 x",
}
CLIMBING = ("../x", "a/../../x", "/etc/x", "a//b", "./a", "a\0b", "a/")


def _reads(name: str, make: str) -> Attack:
    def play(arena: Arena) -> str:
        require(arena.box.run(make).exit_code == 0, "could not be tried")
        try:
            arena.box.read("x")
        except FileNotFoundError as error:
            return str(error).rpartition(": ")[2]
        raise Breach("it was read")

    users = AGENT if name == UNREADABLE else USERS
    stopped_by = "no link followed, regular files only"
    return Attack(f"lets the host read {name}", FILES, stopped_by, play, users)


def _climbs(arena: Arena) -> str:
    for path in CLIMBING:
        try:
            arena.box.write({path: b"x"})
        except ValueError:
            continue
        raise Breach(f"{path!r} was written")
    for path in ("../etc/passwd", "/tmp/../etc/passwd"):
        try:
            arena.box.read(path)
        except ValueError:
            continue
        raise Breach(f"{path!r} was read")
    return f"ValueError for {len(CLIMBING) + 2} paths"


def _leads_a_write_away(arena: Arena) -> str:
    arena.box.run("mkdir /tmp/there; ln -s /tmp/there link")
    try:
        arena.box.write({"link/f": b"escaped"})
    except NotADirectoryError as error:
        require(arena.box.run("ls /tmp/there").output == "", "it was written beyond the link")
        return str(error).rpartition(": ")[2]
    raise Breach("a link was followed")


def _archive_from_outside(arena: Arena) -> str:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        tar.addfile(link)
        for name in ("../escaped", "/tmp/escaped", "link/escaped"):
            tar.addfile(tarfile.TarInfo(name))
    try:
        uploads.checked(packed.getvalue())
    except ValueError as error:
        refusal = str(error)
    else:
        raise Breach("the service takes it")
    with contextlib.suppress(SandboxError):  # tar refuses some members and fails
        wait_for(arena.box.later.unpack(packed.getvalue(), "/work"))
    require(arena.box.run("ls /escaped").exit_code != 0, "it was written into the root")
    require_alive(arena.box)
    return refusal.partition(": ")[0][-60:]


def _archive_from_inside(arena: Arena) -> str:
    arena.box.run("mkdir d; ln -s / d/a; mkfifo d/p; echo x > d/f")
    archive = wait_for(arena.box.later.pack(f"{WORK}/d"))
    with tempfile.TemporaryDirectory(prefix="ale-attack-") as folder:
        target = Path(folder, "out")
        try:
            uploads.unpack(archive, target)
        except ValueError as error:
            require(not target.exists(), "a part of it was unpacked")
            return str(error).partition(": ")[0][-60:]
    raise Breach("a link was unpacked on the host")


def _disturbs_a_snapshot(arena: Arena) -> str:
    arena.box.run("echo kept > f; while :; do pkill -STOP tar; done &")
    snapshot = arena.box.snapshot()
    arena.box.restore(snapshot)
    content = arena.box.read("f")
    return require(content == b"kept\n", f"{content!r} comes back")


def _snapshot_of_holes(arena: Arena) -> str:
    arena.box.run("truncate -s 1T sparse; echo kept > f")
    size = len(arena.box.snapshot())
    return require(size < 1 << 20, f"an archive of {size} bytes for a file of 1 TB")


def _names(arena: Arena) -> str:
    arena.box.run("seq 1 5000 | xargs touch; touch $'new\\nline' -- -rf '*' \"$(printf '\\xff')\"")
    snapshot = arena.box.snapshot()
    arena.box.reset()
    arena.box.restore(snapshot)
    count = arena.box.run("ls -1b | wc -l").output.strip()
    return require(count == "5004", f"{count} files come back")


def _hides_from_reset(arena: Arena) -> str:
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    arena.box.run(f'python3 -c "{deep}"; mkdir l; chmod 000 l /tmp; setsid sleep 999 &')
    arena.box.reset()
    left = arena.box.run("ls -A /work /tmp; cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output
    # Not the number alone, which may be a pid in the listing's own command line.
    is_over = left.startswith("/tmp:\n\n/work:\n") and "sleep 999" not in left
    require(is_over, f"{left!r:.60} is left")
    return "nothing is left of it"


ATTACKS = (
    *(_reads(name, make) for name, make in OBSTACLES.items()),
    Attack("climbs with ..", FILES, "paths are checked", _climbs),
    Attack("leads a write beyond /work", FILES, "no link followed", _leads_a_write_away),
    Attack("sends an archive that climbs", FILES, "members are checked", _archive_from_outside),
    Attack("is downloaded with links in it", FILES, "members are checked", _archive_from_inside),
    Attack("disturbs its snapshot", FILES, "all of it is stopped meanwhile", _disturbs_a_snapshot),
    Attack("has 1 TB of holes packed", FILES, "sparse archives, a bound", _snapshot_of_holes),
    Attack("strange names, thousands of files", FILES, "names are bytes", _names),
    Attack("hides from a reset", FILES, "depth costs nothing, modes are opened", _hides_from_reset),
)
