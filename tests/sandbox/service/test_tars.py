"""Archives from hostile hands, in both directions."""

import io
import os
import stat
import subprocess
import tarfile
import tracemalloc

import pytest

from ale_jax.sandbox.sdk.client import RemoteSandbox
from ale_jax.sandbox.service import uploads
from ale_jax.sandbox.spec import SandboxSpec


def archive(*members, mode="w", **settings):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, **settings) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def member(name, kind=tarfile.REGTYPE, link="", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info, b"" if kind != tarfile.REGTYPE else b"data"


GOOD = member("a/b")
HOSTILE = {
    "up": member("../x"),
    "up inside": member("a/../../x"),
    "harmless up": member("a/../x"),
    "absolute": member("/tmp/x"),
    "symlink out": member("l", tarfile.SYMTYPE, "/etc"),
    "symlink up and out": member("a/l", tarfile.SYMTYPE, "../../x"),
    "symlink to above a link": member("l", tarfile.SYMTYPE, "a/.."),
    "symlink to nothing": member("l", tarfile.SYMTYPE, ""),
    "symlink again": member("a/b", tarfile.SYMTYPE, "c"),
    "symlink above": member("a", tarfile.SYMTYPE, "c"),
    "hard link": member("l", tarfile.LNKTYPE, "a/b"),
    "device": member("d", tarfile.CHRTYPE),
    "pipe": member("p", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_lead_out_is_refused_whole(tmp_path, name):
    data = archive(GOOD, HOSTILE[name])
    with pytest.raises(ValueError, match="archive member"):
        uploads.unpack(data, tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_the_service_refuses_it_before_the_sandbox_sees_it(memory, http, name):
    http.post("/v1/sandboxes", json={})
    answer = http.put("/v1/sandboxes/box-0/archive", content=archive(GOOD, HOSTILE[name]))
    assert answer.status_code == 422 and "archive member" in answer.json()["error"]["message"]
    assert memory.pool.calls == []


@pytest.mark.parametrize("name", HOSTILE)
def test_the_client_refuses_what_a_sandbox_sends(memory, tmp_path, name):
    memory.pool.answers["pack"] = archive(GOOD, HOSTILE[name])
    with memory.client() as client:
        box = client.start(SandboxSpec())
        assert isinstance(box, RemoteSandbox)
        with pytest.raises(ValueError, match="archive member"):
            box.download("/work", tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_link_that_lies_there_already_is_not_followed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="refused"):
        uploads.unpack(archive(GOOD), tmp_path / "out")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(tmp_path / "out") == ["a"]


def lines_of(root):
    """What is below `root`: paths, types and permissions, times, and where links lead."""
    return sorted(
        (path.relative_to(root).as_posix(), stat.S_IFMT(status.st_mode), int(status.st_mtime))
        + ((os.readlink(path),) if path.is_symlink() else (oct(status.st_mode),))
        for path, status in ((path, path.lstat()) for path in root.rglob("*"))
    )


def tree(root):
    """A directory with links that stay inside, and times."""
    (root / "d/e").mkdir(parents=True)
    (root / "d/e/file").write_text("text")
    (root / "d/e/run").write_text("echo ran")
    (root / "d/e/run").chmod(0o755)
    (root / "up").symlink_to("d")
    (root / "d/e/top").symlink_to("../../up/e/file")
    (root / "d/dangling").symlink_to("./nothing")
    (root / "d/root").symlink_to("..")
    for number, name in enumerate(("d/e/file", "up", "d/e/top", "d/root", "d/e", "d")):
        os.utime(root / name, (0, 86400 * 365 * number - 1), follow_symlinks=False)


def test_times_and_links_inside_are_kept_over_and_over(tmp_path):
    tree(tmp_path / "in")
    for _ in range(2):  # what is there is replaced
        uploads.unpack(uploads.pack(tmp_path / "in"), tmp_path / "out")
        assert lines_of(tmp_path / "out") == lines_of(tmp_path / "in")
    assert (tmp_path / "out/d/e/top").read_text() == "text"


@pytest.mark.parametrize("target", ["/etc", "../x", "d/../../x", "d/..", "../in/d"])
def test_a_link_that_may_lead_out_is_refused_by_its_name(tmp_path, target):
    tree(tmp_path / "in")
    (tmp_path / "in/bad").symlink_to(target)
    with pytest.raises(ValueError, match=f"in/bad' is a link to '{target}', which may lead out"):
        uploads.pack(tmp_path / "in")


def test_a_link_that_is_to_be_copied_alone_is_refused_by_its_name(tmp_path):
    (tmp_path / "bad").symlink_to("x")
    with pytest.raises(ValueError, match="bad' is a link to 'x': name what it leads to"):
        uploads.pack_file(tmp_path / "bad", "bad")


@pytest.mark.parametrize("time", ["nan", "inf", "1e300", "-1e300"])
def test_a_time_that_no_file_can_have_is_refused(tmp_path, time):
    info, data = member("x")
    info.pax_headers = {"mtime": time}
    with pytest.raises(ValueError, match="has the time"):
        uploads.unpack(archive((info, data)), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_permissions_are_kept_as_far_as_the_umask_and_safety_allow(tmp_path):
    modes = {"x": 0o6777, "y": 0o666, "z": 0o600, "w": 0o555}
    (tmp_path / "z").write_bytes(b"before")
    (tmp_path / "z").chmod(0o644)
    uploads.unpack(archive(*(member(name, mode=mode) for name, mode in modes.items())), tmp_path)
    got = [(tmp_path / name).stat().st_mode & 0o7777 for name in modes]
    umask = os.umask(0)
    os.umask(umask)
    assert got == [mode & 0o777 & ~umask for mode in modes.values()]


def test_permissions_are_packed(tmp_path):
    (tmp_path / "d").mkdir(0o750)
    (tmp_path / "d/x").touch(0o700)
    (tmp_path / "d/x").chmod(0o4700)
    assert [each.mode for each in uploads.checked(uploads.pack(tmp_path))] == [0o750, 0o700]


@pytest.mark.parametrize(
    "data", [b"no tar" * 200, b"", archive(GOOD, mode="w:gz")], ids=["text", "empty", "zipped"]
)
def test_what_is_no_plain_tar_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match="archive"):
        uploads.unpack(data, tmp_path)


def test_directories_in_each_other_are_bounded_both_ways(tmp_path, memory, http):
    def nested(depth):
        return archive(member("/".join(["a"] * (depth + 1))), format=tarfile.PAX_FORMAT)

    for depth in (uploads.MAX_DEPTH + 1, 2000):
        with pytest.raises(ValueError, match=f"is {depth} directories deep: use at most 256"):
            uploads.unpack(nested(depth), tmp_path / "out")
    http.post("/v1/sandboxes", json={})
    answer = http.put("/v1/sandboxes/box-0/archive", content=nested(2000))
    assert answer.status_code == 422 and "2000 directories deep" in answer.text
    uploads.unpack(nested(uploads.MAX_DEPTH), tmp_path / "out")
    assert len(uploads.checked(uploads.pack(tmp_path / "out"))) == uploads.MAX_DEPTH + 1
    (tmp_path / "out").rename(tmp_path / "once_more")
    with pytest.raises(ValueError, match="is more than 256 directories deep: copy a part of it"):
        uploads.pack(tmp_path)


def test_an_archive_has_bounds(tmp_path, monkeypatch):
    data = archive(member("x"), member("y"))
    assert len(uploads.checked(data, max_bytes=8)) == 2
    with pytest.raises(ValueError, match="7 bytes"):
        uploads.unpack(data, tmp_path, max_bytes=7)
    monkeypatch.setattr(uploads, "MAX_MEMBERS", 1)
    with pytest.raises(ValueError, match="1 members"):
        uploads.unpack(data, tmp_path)
    assert os.listdir(tmp_path) == []


def fields(number):
    return {f"{n:x}": "" for n in range(number)}


def empty(name, **headers):
    info = tarfile.TarInfo(name)
    info.pax_headers = headers
    return info, b""


def sized(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


HEAVY = {
    "global fields": lambda: archive(
        *[empty(f"{n}") for n in range(200)], pax_headers=fields(2000)
    ),
    "fields": lambda: archive(*[empty(f"{n}", **fields(5000)) for n in range(10)]),
    "map": lambda: archive(
        *[empty(f"{n}", **{"GNU.sparse.map": "0,0" + ",0,0" * 15_000}) for n in range(5)]
    ),
    "long name": lambda: archive(member("x" * (1 << 20)), format=tarfile.GNU_FORMAT),
}


@pytest.mark.parametrize("name", HEAVY)
def test_headers_take_no_more_memory_than_a_few_times_their_size(tmp_path, name):
    data = HEAVY[name]()
    tracemalloc.start()
    try:
        uploads.unpack(data, tmp_path)
    except ValueError as error:
        assert "header" in str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_member_has_no_size_below_zero(tmp_path):
    with pytest.raises(ValueError, match="the size -512"):
        uploads.unpack(sized("x", -512), tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    ["--format=gnu", "--format=gnu --sparse", "--format=pax", "--format=pax --sparse"],
)
def test_what_tar_packs_is_taken(tmp_path, words):
    source, long = tmp_path / "in", "d" * 150
    (source / long).mkdir(parents=True)
    with open(source / long / "file", "wb") as file:
        for at in range(0, 1 << 20, 1 << 14):  # 64 pieces of data, with holes between them
            file.seek(at)
            file.write(b"x")
        file.truncate(1 << 20)
    packed = subprocess.run(
        ["tar", "--create", *words.split(), "-C", source, "."], capture_output=True, check=True
    )
    uploads.unpack(packed.stdout, tmp_path / "out")
    copy = (tmp_path / "out" / long / "file").read_bytes()
    assert copy == (source / long / "file").read_bytes()


def test_the_comment_that_git_writes_for_all_members_is_taken():
    data = archive(GOOD, pax_headers={"comment": "0" * 40})
    assert [each.name for each in uploads.checked(data)] == ["a/b"]


def test_a_sparse_file_is_counted_by_its_size(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 20)
    with pytest.raises(ValueError, match="bytes"):
        uploads.pack(tmp_path, max_bytes=1 << 19)


def test_packing_names_what_it_does_not_take(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    members = uploads.checked(uploads.pack(tmp_path))
    assert [(each.name, each.uid) for each in members] == [("x", 0)]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe' is a device, a pipe or a socket"):
        uploads.pack(tmp_path)
    with pytest.raises(NotADirectoryError):
        uploads.pack(tmp_path / "x")
