"""What an episode leaves: a reset brings back all that a next episode could see, or ends the
sandbox."""

import dataclasses

import pytest

from ale_jax.sandbox.api import SandboxLost
from tests.sandbox.conftest import SPEC

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]

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


@pytest.fixture(params=["agent", "root"])
def box(runtime, request):
    spec = dataclasses.replace(SPEC, user=request.param, output_bytes=1 << 20)
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


def look(box) -> list[str]:
    seen = box.exec(["python3", "-c", LOOK])
    assert seen.exit_code == 0, seen
    return seen.stdout.splitlines()


def test_no_note_in_a_file_outlives_a_reset(box):
    new = look(box)
    left = box.exec(["python3", "-c", LEAVE])
    assert left.exit_code == 0, left
    changed = set(look(box)) - set(new)
    assert sum("user.note" in line for line in changed) >= 3, changed
    assert sum("posix_acl_default" in line for line in changed) >= 3, changed
    assert sum("b'@" in line for line in changed) == 3, changed
    assert sum("True" in line for line in changed) >= 3, changed
    box.reset()
    assert look(box) == new


def test_a_terminal_that_was_changed_is_new_or_ends_the_sandbox(runtime, box):
    """Docker's terminals are mounted for all episodes, and bubblewrap's for one."""
    new = look(box)
    changes = not box.run("touch -d 1980-01-01 /dev/pts/ptmx && chmod 600 /dev/pts/ptmx").exit_code
    assert changes == (runtime.name == "bubblewrap" or box.spec.user == "root")
    if changes and runtime.name == "docker":
        with pytest.raises(SandboxLost, match="differs from a new sandbox: written"):
            box.reset()
    else:
        box.reset()
        assert look(box) == new


def test_a_terminal_that_was_used_ends_nothing(box):
    box.begin("read line; echo $line")
    box.send("here\n")
    assert box.expect("here").matched
    box.reset()
    assert box.run("echo up").output == "up\n"
