"""Attacks on the next episode: what one leaves where a reset could overlook it."""

from __future__ import annotations

from ale_jax.sandbox.api import SandboxLost
from ale_jax.sandbox.blocking import BlockingSandbox
from benchmarks.sandbox.attacks.attack import Arena, Attack, evidence, require

REMAINS = "remains"
OUTPUT_BYTES = 1 << 20
# Tries to leave a note in all that a mount point, /dev and a few files of /proc are: data, names,
# modes, owners, times, extended attributes, access lists and flags. Terminals are tried elsewhere.
LEAVE = r"""
import contextlib, fcntl, os, struct
def attempt(act, *arguments, **named):
    with contextlib.suppress(OSError):
        act(*arguments, **named)
def set_flags(place):
    fcntl.ioctl(os.open(place, os.O_RDONLY | os.O_NONBLOCK), 0x40086602, struct.pack("I", 0x40))
access = struct.pack("I", 2) + b"".join(
    struct.pack("HHI", kind, 7, id) for kind, id in
    ((1, 2**32 - 1), (2, os.getuid()), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1)))
places = {line.split()[4] for line in open("/proc/self/mountinfo")}
places |= {"/proc/version", "/proc/net/tcp", "/proc/1/net/dev", "/etc", "/run"}
places |= {f"/dev/{name}" for name in os.listdir("/dev")} - {"/dev/fd", "/dev/ptmx"}
for place in sorted(each for each in places if not each.startswith(("/dev/pts", "/dev/std"))):
    attempt(os.setxattr, place, "user.note", b"42", follow_symlinks=False)
    attempt(os.setxattr, place, "system.posix_acl_access", access)
    attempt(os.setxattr, place, "system.posix_acl_default", access)
    attempt(set_flags, place)
    if os.path.isdir(place):
        attempt(os.mkdir, f"{place}/note")
        attempt(lambda: open(f"{place}/note.txt", "w").write("42"))
    elif place.startswith("/dev/"):
        attempt(os.unlink, place)
        attempt(os.mkfifo, place)
    attempt(os.utime, place, (5, 5))
    attempt(os.chmod, place, 0o701)
    attempt(os.chown, place, 7, 7, follow_symlinks=False)
"""
# What can be seen of the same places. Of times, only whether they are those that LEAVE sets.
LOOK = r"""
import contextlib, fcntl, os
places = {line.split()[4] for line in open("/proc/self/mountinfo")} | {"/proc/version"}
entered = [each for each in places if os.path.isdir(each) and not each.startswith("/proc")]
for name in sorted(places.union(*([f"{each}/{name}" for name in os.listdir(each)]
                                  for each in entered))):
    seen, attributes = os.lstat(name), os.listxattr(name, follow_symlinks=False)
    about = oct(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_rdev, 5 in seen[7:9]
    print(name, *about, attributes)
for name in ("/work", "/tmp", "/dev/shm"):
    print(name, fcntl.ioctl(os.open(name, os.O_RDONLY), 0x80086601, bytes(4)))
"""
# Closes connections at the side of their server, which then has to wait in TIME_WAIT.
CONNECT = r"""
import socket
server = socket.create_server(("127.0.0.1", 8080))
for _ in range(100):
    client = socket.create_connection(("127.0.0.1", 8080))
    served, _ = server.accept()
    served.close()
    client.recv(1)
    client.close()
"""
# Without SO_REUSEADDR, as a program has it that knows nothing of earlier ones.
LISTEN = r"""
import socket
socket.socket().bind(("127.0.0.1", 8080))
print([line for name in ("tcp", "tcp6", "udp")
       for line in open(f"/proc/net/{name}").read().splitlines()[1:]])
"""
MODES = "stat -c '%a %u %g' /proc/version /proc/net/tcp /proc/sys/kernel/ostype"
CHANGE = "chmod 0445 /proc/version /proc/net/tcp; chown 7:7 /proc/version /proc/net/tcp"


def look(box: BlockingSandbox) -> list[str]:
    """What LOOK sees, which needs OUTPUT_BYTES."""
    seen = box.exec(["python3", "-c", LOOK])
    require(seen.exit_code == 0, evidence(seen.stderr, -1))
    return seen.stdout.splitlines()


def _leaves_notes(user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user, output_bytes=OUTPUT_BYTES) as box:
            new = look(box)
            box.exec(["python3", "-c", LEAVE])
            changed = set(look(box)) - set(new)
            require(bool(changed), "it could leave nothing")
            box.reset()
            left = set(look(box)) - set(new)
            return require(not left, f"{len(left)} of {len(changed)} changes are left")

    return Attack(f"leaves notes everywhere, as {user}", REMAINS, "read-only or restored", play)


def _breaks_devices(user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user) as box:
            output = box.run("rm -f /dev/*; mkfifo /dev/null; chmod 0 /dev/null").output
            box.reset()
            echoed = box.run("head -c 1 /dev/zero > /dev/null && head -c 0 /dev/urandom; echo $?")
            require(echoed.output == "0\n", evidence(echoed.output))
            return evidence(output)

    return Attack(f"breaks the devices, as {user}", REMAINS, "read-only /dev", play)


def _changes_terminals(user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user, output_bytes=OUTPUT_BYTES) as box:
            new = look(box)
            box.run("chmod 600 /dev/pts/ptmx; chmod 701 /dev/pts; touch -d @5 /dev/pts/ptmx")
            try:
                box.reset()
            except SandboxLost as error:
                return evidence(str(error))
            return require(look(box) == new, "they are as they were before")

    return Attack(f"changes the terminals, as {user}", REMAINS, "new, or compared", play)


def _changes_modes_of_the_host(user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user) as box:
            before = arena.box.run(MODES).output
            said = box.run(CHANGE).output
            require(arena.box.run(MODES).output == before, "a neighbour's /proc is changed")
            return evidence(said)

    return Attack(f"changes modes in /proc, as {user}", REMAINS, "read-only /proc", play)


def _takes_a_port(arena: Arena) -> str:
    done = arena.box.exec(["python3", "-c", CONNECT])
    require(done.exit_code == 0, evidence(done.stderr, -1))
    arena.box.reset()
    after = arena.box.exec(["python3", "-c", LISTEN])
    return require(after.stdout == "[]\n", evidence(after.stderr + after.stdout, -1))


KINDS = (_leaves_notes, _breaks_devices, _changes_terminals, _changes_modes_of_the_host)
ATTACKS = (
    *(kind(user) for kind in KINDS for user in ("agent", "root")),
    Attack("takes the next episode's port", REMAINS, "a network without TIME_WAIT", _takes_a_port),
)
