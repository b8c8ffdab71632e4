"""Files go in and out, whatever the agent has built where they lie."""

import dataclasses
import io
import tarfile

import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.runner.files import describe_entry, list_directory
from ale_jax.sandbox.spec import WORK
from tests.sandbox.conftest import SPEC, lease, processes


@pytest.mark.each_runtime
def test_written_files_are_read_back_and_belong_to_the_agent(box):
    files = {"a.txt": b"text\n", "deep/er/b.bin": bytes(range(256)), "empty": b""}
    box.write(files)
    assert {path: box.read(path) for path in files} == files
    assert (
        box.run("stat -c '%U %a' a.txt deep deep/er").output == "agent 644\nagent 755\nagent 755\n"
    )
    assert box.run("rm -r deep && echo gone").output == "gone\n"


def test_write_replaces(box):
    box.run("echo longer than before > a; ln -s /tmp/b b; ln a c; mkfifo d")
    box.write({"a": b"1", "b": b"2", "d": b"3"})
    assert [box.read(name) for name in "abd"] == [b"1", b"2", b"3"]
    assert box.read("c") == b"longer than before\n"  # the other name of the old file keeps it
    assert box.run("ls /tmp").output == ""


def test_read_takes_absolute_paths_and_stops_at_max_bytes(box):
    box.run("printf 0123456789 > /tmp/digits")
    assert box.read("/tmp/digits") == b"0123456789"
    assert box.read("/tmp/digits", max_bytes=4) == b"0123"


@pytest.mark.parametrize("path", ["", "../etc/passwd", "/tmp/../etc/passwd", "a\0b"])
def test_read_refuses_paths_that_climb(box, path):
    with pytest.raises(ValueError, match="path"):
        box.read(path)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\0b", "a/"]
)
def test_write_refuses_paths_that_could_leave_work(box, path):
    with pytest.raises(ValueError, match="path"):
        box.write({path: b""})


@pytest.mark.parametrize(
    "make",
    [
        "true",
        "mkdir x",
        "mkfifo x",
        "ln -s /etc/passwd x",
        "ln -s x x",
        "ln -s /dev/zero x",
        "echo secret > x; chmod 000 x",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'",
        f"echo secret > x; {lease('x')}",
    ],
)
def test_only_regular_files_are_read(box, make):
    assert box.run(make).exit_code == 0
    with pytest.raises(FileNotFoundError):
        box.read("x")
    assert box.run("echo alive").output == "alive\n"


@pytest.mark.parametrize("path", ["a" * 300, "\ud800", "dir/" + "é" * 200])
def test_names_that_no_file_can_have(box, path):
    with pytest.raises(FileNotFoundError):
        box.read(path)
    with pytest.raises(OSError):
        box.write({path: b""})
    assert box.run("echo alive").output == "alive\n"


@pytest.mark.each_runtime
def test_linked_directories_are_not_entered(box):
    box.run("mkdir /tmp/there; echo out > /tmp/there/f; ln -s /tmp/there link")
    with pytest.raises(FileNotFoundError):
        box.read("link/f")
    with pytest.raises(NotADirectoryError):
        box.write({"link/g": b"escaped"})
    assert box.run("ls /tmp/there").output == "f\n"


def test_a_link_is_named_by_whatever_does_not_follow_it(box):
    box.run("mkdir -p dir/there; ln -s there dir/link; ln -s /nowhere out; touch file")
    told = "'{}' is a symbolic link, and links are not followed"
    later = box.later
    for act, name in (
        (lambda: box.read("dir/link/f"), "link"),
        (lambda: box.read("out"), "out"),
        (lambda: box.write({"dir/link/f": b""}), "link"),
        (lambda: wait_for(later.list("dir/link")), "link"),
        (lambda: wait_for(later.unpack(b"\0" * 1024, "dir/link")), "link"),
    ):
        with pytest.raises((OSError, SandboxError), match=told.format(name)):
            act()
    with pytest.raises(FileNotFoundError, match=r"'file/f' cannot be read.*: Not a directory"):
        box.read("file/f")


def test_a_file_or_directory_in_the_way_is_an_error(box):
    box.run("echo > file; mkdir dir")
    with pytest.raises(NotADirectoryError):
        box.write({"file/x": b""})
    with pytest.raises(IsADirectoryError):
        box.write({"dir": b""})


def test_a_directory_is_listed_without_following_links(box):
    box.run("mkdir -m 750 dir; printf 12345 > dir/file; ln -s file dir/link; mkfifo dir/pipe")
    box.run("chmod 640 dir/file; ln -s dir linked")
    listed = {each.name: each for each in wait_for(box.later.list("dir"))}
    assert {name: each.kind for name, each in listed.items()} == {
        "file": "file",
        "link": "link",
        "pipe": "other",
    }
    assert (listed["file"].bytes, listed["file"].mode) == (5, 0o640)
    assert wait_for(box.later.list(f"{WORK}/dir/")) == list(listed.values())
    assert "work" in [each.name for each in wait_for(box.later.list("/"))]
    for path in ("linked", "linked/.", "dir/file", "dir/pipe", "nothing"):
        with pytest.raises(FileNotFoundError):
            wait_for(box.later.list(path))


def test_what_is_removed_during_a_listing_is_left_out(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x")

    def describe(entry):
        if entry.name == "b":
            (tmp_path / "b").unlink()
        return describe_entry(entry)

    monkeypatch.setattr("ale_jax.sandbox.runner.files.describe_entry", describe)
    listed = list_directory(str(tmp_path), 10, 1000)
    assert [each["name"] for each in listed] == ["a", "c"]


def test_a_listing_stops_where_it_would_be_too_long(box):
    """A byte that is no text takes six in JSON."""
    make = "[open(b'%05d' % number + b'\\xff' * 250, 'x').close() for number in range(6000)]"
    assert box.run(f'mkdir dir; cd dir; python3 -c "{make}"').exit_code == 0
    names = [each.name for each in wait_for(box.later.list("dir"))]
    assert 5000 < len(names) < 6000
    assert {name[5:] for name in names} == {"\ufffd" * 250}


@pytest.mark.each_runtime
def test_snapshot_brings_back_the_files_and_nothing_else(box):
    box.write({"a": b"1", "d/b": b"2"})
    box.run("chmod 711 d; ln -s a link; mkfifo pipe; truncate -s 1G sparse; echo t > /tmp/t")
    snapshot = box.snapshot()
    box.run("rm -r d; echo changed > a; echo > extra; x=3; cd /tmp")
    box.restore(snapshot)
    assert box.run(
        "pwd; ls; stat -c '%a %s' d sparse; cat a d/b; readlink link; echo x=$x"
    ).output == ("/work\na\nd\nlink\npipe\nsparse\n711 60\n644 1073741824\n12a\nx=\n")
    assert box.run("cat /tmp/*; stat -c %a /tmp").output == "t\n1777\n"


def test_a_snapshot_that_is_longer_than_it_may_be_is_refused(box):
    box.run("head -c 200000 /dev/urandom > big")
    with pytest.raises(SandboxError, match="longer than 100000 bytes"):
        wait_for(box.later.snapshot(max_bytes=100_000))
    assert len(box.snapshot()) > 200_000


def test_snapshot_does_not_disturb_the_session(box):
    box.run("cd /tmp; x=3; sleep 60 & job=$!")
    box.snapshot()
    assert box.run("echo $x $PWD; kill $job && echo running").output == "3 /tmp\nrunning\n"


def test_nothing_of_the_agent_interferes_with_a_snapshot(box):
    box.run("echo kept > f; while :; do pkill -STOP tar; done &")
    snapshot = box.snapshot()
    box.restore(snapshot)
    assert box.read("f") == b"kept\n"


def test_snapshot_that_is_none_is_an_error(box):
    with pytest.raises(SandboxError, match="restore"):
        box.restore(b"not an archive" * 1000)
    assert box.run("echo alive").output == "alive\n"


@pytest.mark.each_runtime
def test_reset_leaves_nothing(box):
    box.run("cd /tmp; echo > /tmp/a; mkdir -p b/c; echo > b/c/d; touch .hidden; x=3; umask 077")
    box.run(
        "mkdir locked; echo > locked/f; chmod 000 locked; chmod 000 /work /tmp; setsid sleep 99 &"
    )
    box.reset()
    assert box.run("pwd; ls -A /work /tmp; echo x=$x; umask").output == (
        "/work\n/tmp:\n\n/work:\nx=\n0022\n"
    )
    assert box.run("stat -c %a /work /tmp").output == "755\n1777\n"
    assert "sleep" not in processes(box)


def test_reset_of_a_deep_and_a_wide_tree(box):
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    made = box.run(
        f'python3 -c "{deep}" && mkdir /tmp/wide && cd /tmp/wide && seq 5000 | xargs touch'
    )
    assert made.exit_code == 0
    box.reset()
    assert box.run("ls -A /work /tmp").output == "/tmp:\n\n/work:\n"


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_reset_of_more_files_than_there_is_memory_for(runtime):
    """What is left of the memory is not enough to list them all."""
    with runtime.start(dataclasses.replace(SPEC, memory_mb=48), {}) as sandbox:
        sandbox.run("mkdir m; cd m; seq 100000 | xargs touch")
        sandbox.reset()
        assert sandbox.run("ls -A /work /tmp").output == "/tmp:\n\n/work:\n"


def test_kill_processes_keeps_files(box):
    box.run("cd /tmp; echo kept > ~/f; x=3; setsid sleep 1234 & (trap '' TERM; sleep 1234) &")
    box.kill_processes()
    assert "sleep" not in processes(box)
    assert box.run("pwd; cat f; echo x=$x").output == "/work\nkept\nx=\n"


@pytest.mark.each_runtime
def test_a_directory_is_packed_while_a_log_in_it_grows(box):
    grow = "while :; do head -c 100000 /dev/zero > d/log; echo line >> d/log; done"
    box.run(f"mkdir d; echo kept > d/file; ({grow}) &")
    for _ in range(10):
        with tarfile.open(fileobj=io.BytesIO(wait_for(box.later.pack(f"{WORK}/d")))) as tar:
            assert tar.extractfile("./file").read() == b"kept\n"


LOCK = "python3 -c 'import multiprocessing; multiprocessing.Lock(); print(1)' 2>&1 | tail -n 1"


@pytest.mark.each_runtime
def test_shared_memory_is_writable_limited_and_empty_after_a_reset(box):
    assert box.run(LOCK).output == "1\n"
    box.run(f"head -c {2 * SPEC.files_mb << 20} /dev/zero > /dev/shm/much; mkdir -p /dev/shm/a/b")
    size = int(box.run("stat -c %s /dev/shm/much").output)
    assert 0 < size <= SPEC.files_mb << 20
    box.reset()
    assert box.run("ls -A /dev/shm").output == ""
    assert box.run(LOCK).output == "1\n"
