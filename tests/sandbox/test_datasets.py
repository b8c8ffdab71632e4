"""Data sets of a host: who may offer them, who sees them, and that nobody changes them."""

import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.sandbox.spec import SandboxSpec
from tests.rows import each_row
from tests.sandbox.conftest import SPEC
from tests.sandbox.disk.conftest import SPEC as ON_DISK
from tests.sandbox.disk.conftest import disk_runtime  # noqa: F401
from tests.sandbox.service.test_cli import CLI

WITH_WIKI = dataclasses.replace(SPEC, datasets=("wiki",))
CHANGES = (
    *("echo x > /data/wiki/page", "echo x > /data/wiki/new", "rm /data/wiki/page"),
    *("chmod 777 /data/wiki/page", "touch -d @0 /data/wiki/page", "mv /data/wiki /data/other"),
    *("mkdir /data/other", "mount -o remount,rw /data/wiki", "umount /data/wiki"),
    *("ln /data/wiki/page /data/wiki/link", "mknod /data/wiki/node p", "echo x > /data/wiki/in/y"),
)


@pytest.fixture(scope="module")
def wiki():
    """A directory that the mount alone protects."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        folder = Path(top, "wiki")
        (folder / "in").mkdir(parents=True)
        (folder / "page").write_text("all about it\n")
        for path, mode in (("page", 0o666), ("in", 0o777), (".", 0o777), ("..", 0o755)):
            (folder / path).chmod(mode)
        yield folder


@pytest.fixture(scope="module")
def offer(wiki):
    return Datasets((("wiki", str(wiki)), ("other", "/usr")))


def listing(folder):
    return {
        path.relative_to(folder): (*path.stat()[:9], path.stat().st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.heavy
@pytest.mark.each_runtime
@pytest.mark.parametrize("user", ["agent", "root"])
def test_all_sandboxes_see_it_and_none_changes_it(runtime, wiki, offer, user):
    spec = dataclasses.replace(WITH_WIKI, user=user)
    runtime = pick_runtime(runtime.name, spec, datasets=offer)
    before = listing(wiki)
    with runtime.start(spec, {}) as one, runtime.start(spec, {}) as other:
        for box in (one, other):
            assert box.run("cat /data/wiki/page; ls /data").output == "all about it\nwiki\n"
            for change in CHANGES:
                assert box.exec(change).exit_code != 0, change
        snapshot = one.snapshot()
        one.reset()
        assert one.run("cat /data/wiki/page").output == "all about it\n"
        one.restore(snapshot)
        one.renew()
        assert one.run("cat /data/wiki/page").output == "all about it\n"
    assert listing(wiki) == before


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_a_file_system_below_it_is_not_writable_either(runtime, wiki, offer):
    if os.getuid() != 0:
        pytest.skip("needs root to mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "below", wiki / "in"]).returncode:
        pytest.skip("cannot mount")
    try:
        with pick_runtime(runtime.name, WITH_WIKI, datasets=offer).start(WITH_WIKI, {}) as box:
            assert box.exec("echo x > /data/wiki/in/y").exit_code != 0
        assert not os.listdir(wiki / "in")
    finally:
        subprocess.run(["umount", wiki / "in"], check=True)


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_what_is_not_named_or_not_offered_is_not_there(runtime, offer):
    behind = pick_runtime(runtime.name, SPEC, datasets=offer)
    with behind.start(SPEC, {}) as box:
        assert box.exec("ls /data/wiki").exit_code != 0
    unknown = dataclasses.replace(SPEC, datasets=("secrets",))
    with pytest.raises(SandboxStartError, match="'secrets' is not one that") as caught:
        behind.start(unknown, {})
    assert "other" not in str(caught.value)  # a tenant may hear it
    with pytest.raises(SandboxStartError, match="'secrets' is not one that"):
        pick_runtime(runtime.name, unknown, datasets=offer)
    with pytest.raises(SandboxStartError, match="'wiki' is not one that"):
        runtime.start(WITH_WIKI, {})


@pytest.mark.heavy
def test_root_of_a_disk_does_not_change_it(disk_runtime, wiki, offer):  # noqa: F811
    spec, before = dataclasses.replace(ON_DISK, datasets=("wiki",)), listing(wiki)
    with pick_runtime("bubblewrap", spec, datasets=offer).start(spec, {}) as box:
        assert box.run("cat /data/wiki/page").output == "all about it\n"
        # Else another machine of this sandbox would mount it wherever a link leads.
        for change in (*CHANGES, "mv /data /old && ln -s /etc /data", "rmdir /data"):
            assert box.exec(change).exit_code != 0, change
        box.restore(box.snapshot())
        assert box.run("cat /data/wiki/page").output == "all about it\n"
        box.reset()
        assert box.run("cat /data/wiki/page").output == "all about it\n"
    assert listing(wiki) == before


@pytest.mark.heavy
def test_a_service_offers_what_its_operator_names(runtime, wiki):
    line = [*CLI, "serve", "--port=0", f"--runtime={runtime.name}", f"--dataset=wiki={wiki}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as service:
        try:
            with SandboxClient(service.stdout.readline().split()[0]) as client:
                assert client.start(WITH_WIKI).run("cat /data/wiki/page").output == "all about it\n"
        finally:
            service.terminate()


@each_row(
    "text, told",
    [
        ("wiki", "must be an absolute path"),
        ("=/srv/wiki", "must be NAME=/PATH"),
        ("../up=/srv/wiki", "must be NAME=/PATH"),
        ("Wiki=/srv/wiki", "must be NAME=/PATH"),
        ("wiki=srv/wiki", "must be an absolute path below /"),
        ("wiki=/", "must be an absolute path below /"),
        ("wiki=//srv", "must be an absolute path below /"),
        ("wiki=/srv/../etc", "must be an absolute path below /"),
        ("wiki=/srv\0", "must be an absolute path below /"),
        ("wiki=/proc", "is no place for one"),
        ("wiki=/dev/shm", "is no place for one"),
        ("wiki=/tmp/wiki", "is no place for one"),
        ("other=/srv", "is there twice"),
    ],
)
def test_what_cannot_be_offered_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        Datasets.parse(["other=/usr", text])


def test_a_directory_that_sandboxes_could_not_read_is_told_before_they_start(wiki, monkeypatch):
    folder = wiki.parent / "closed" / "kept"
    offered = Datasets((("wiki", str(folder)),))
    with pytest.raises(ValueError, match="no directory of this machine"):
        pick_runtime("auto", SPEC, datasets=offered)
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    for closed, mode, told in ((folder, 0o750, "o\\+rx .*kept$"), (folder.parent, 0o700, "o\\+x")):
        closed.chmod(mode)
        with pytest.raises(ValueError, match=f"type: chmod {told}"):
            offered.check_here()
        closed.chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: 1)
    offered.check_here()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="cannot be read"):
        offered.check_here()


def test_a_link_to_where_none_may_be_is_told(wiki):
    link = wiki.parent / "link"
    link.symlink_to("/proc")
    with pytest.raises(ValueError, match="'/proc' is no place for one"):
        Datasets((("wiki", str(link)),)).check_here()


@each_row(
    "fields, told",
    [
        ({"datasets": ("../etc",)}, "must be a name"),
        ({"datasets": ("",)}, "must be a name"),
        ({"datasets": ("wiki/page",)}, "must be a name"),
        ({"datasets": ("wiki", "wiki")}, "name each once"),
        ({"datasets": tuple(f"d{n}" for n in range(65))}, "at most 64"),
        ({"datasets": ("wiki",), "writable": ("/data",)}, "where the data sets are"),
        ({"datasets": ("wiki",), "writable": ("/data/wiki",)}, "where the data sets are"),
    ],
)
def test_a_spec_names_data_sets_and_never_paths(fields, told):
    with pytest.raises(ValueError, match=told):
        SandboxSpec(**fields)
    assert SandboxSpec(writable=("/data", "/database"), memory_mb=512).datasets == ()
    assert SandboxSpec.from_json({"datasets": ["wiki"]}).datasets == ("wiki",)
