"""A recipe's address is its content, all of it; a folder that cannot be one is refused by name."""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from ale_jax.sandbox.hub import recipe
from ale_jax.sandbox.hub.recipe import Settings, content_address, read_recipe, write_context
from tests.sandbox.hub.conftest import ROOT


@pytest.fixture
def folder(tmp_path):
    """A Dockerfile, a program, a folder with a file, an empty folder, and a link."""
    root = tmp_path / "recipe"
    (root / "data" / "empty").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM debian:12\n")
    (root / "data" / "words").write_text("one\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "also").symlink_to("data/words")
    return root


def refused(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read_recipe("x", folder)
    assert str(folder) in str(caught.value) and "'ale-x'" in str(caught.value)
    return str(caught.value)


def test_the_address_is_that_of_the_written_down_scheme(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "build.sh").write_text("#!/bin/sh\n")
    (tmp_path / "b" / "build.sh").chmod(0o755)
    (tmp_path / "b" / "a").symlink_to("build.sh")
    script = hashlib.sha256(b"#!/bin/sh\n").hexdigest().encode()
    content = b"ale recipe 1\0link\0-\0a\0build.sh\0file\0x\0build.sh\0" + script + b"\0"
    read = read_recipe("b", tmp_path / "b")
    assert read.address == hashlib.sha256(content).hexdigest()[:12]
    assert read.reference == f"ale/b:{read.address}" and read.moving == "ale-b"
    assert (read.kind, read.bases, read.settings) == ("build.sh", (), Settings())


def test_the_order_in_which_a_folder_lists_its_files_does_not_count(tmp_path):
    for number in range(40):
        (tmp_path / str(number)).touch()
    nothing = hashlib.sha256(b"").hexdigest()
    entries = [f"file\0-\0{number}\0{nothing}\0" for number in sorted(map(str, range(40)))]
    content = "ale recipe 1\0" + "".join(entries)
    assert content_address(tmp_path) == hashlib.sha256(content.encode()).hexdigest()[:12]


CHANGES = {
    "bytes": lambda root: (root / "data" / "words").write_text("two\n"),
    "path": lambda root: (root / "data" / "words").rename(root / "data" / "word"),
    "executable": lambda root: (root / "run").chmod(0o644),
    "link": lambda root: ((root / "also").unlink(), (root / "also").symlink_to("run")),
    "link to copy": lambda root: (
        (root / "also").unlink(),
        shutil.copy(root / "run", root / "also"),
    ),
    "empty folder": lambda root: (root / "data" / "empty").rmdir(),
    "hidden file": lambda root: (root / "data" / ".keep").touch(),
    "cut elsewhere": lambda root: (root / "data" / "empty").rename(root / "data" / "empt"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_content_changes_the_address(change, folder):
    before = content_address(folder)
    change(folder)
    assert content_address(folder) != before


def test_place_time_owner_and_umask_do_not_change_it(folder, tmp_path):
    before = content_address(folder)
    copy = tmp_path / "elsewhere"
    copy.mkdir(mode=0o700)
    for entry in sorted(folder.rglob("*"), reverse=True):
        target = copy / entry.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_symlink():
            target.symlink_to(os.readlink(entry))
        elif entry.is_file():
            shutil.copyfile(entry, target)
            target.chmod(0o744 if entry.name == "run" else 0o660)
            os.utime(target, (1, 1))
        else:
            target.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(copy)
    assert content_address(copy) == content_address(tmp_path / "link") == before


def test_the_context_holds_what_the_address_covers_and_nothing_of_this_machine(folder):
    packed = io.BytesIO()
    write_context(folder, packed)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        found = {m.name: (m.type, m.mode, m.linkname) for m in archive}
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in archive} == {(0, 0, "", 0)}
        assert archive.extractfile("data/words").read() == b"one\n"
    assert found == {
        "Dockerfile": (tarfile.REGTYPE, 0o644, ""),
        "also": (tarfile.SYMTYPE, 0o644, "data/words"),
        "data": (tarfile.DIRTYPE, 0o755, ""),
        "data/empty": (tarfile.DIRTYPE, 0o755, ""),
        "data/words": (tarfile.REGTYPE, 0o644, ""),
        "run": (tarfile.REGTYPE, 0o755, ""),
    }


def test_a_name_that_is_not_text_is_hashed_and_sent_as_it_is(folder):
    with open(os.fsencode(folder) + b"/\xff\n", "wb") as file:
        file.write(b"x")
    packed = io.BytesIO()
    write_context(folder, packed)
    assert b"\xff\n\0" in packed.getvalue()
    assert content_address(folder) != content_address(folder / "data")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("out", "../outside"),
        ("out", "/etc/passwd"),
        ("deep/out", "../../outside"),
        # Of two links each is harmless by its letters: `deep/up` is the folder itself.
        ("out", "deep/up/../outside"),
    ],
)
def test_a_link_out_of_the_folder_is_refused(folder, name, target):
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to("..")
    (folder / name).symlink_to(target)
    assert f"{name!r} is a link out of the folder, to {target!r}" in refused(folder)


def test_links_that_stay_inside_are_content(folder):
    (folder / "loop").symlink_to("loop")
    (folder / "data" / "up").symlink_to("../run")
    (folder / "nowhere").symlink_to("not/there")
    assert read_recipe("x", folder).kind == "Dockerfile"


def test_what_is_no_file_is_refused_and_not_waited_for(folder, tmp_path, monkeypatch):
    os.mkfifo(folder / "pipe")
    assert "'pipe' is neither file, folder nor link; remove it" in refused(folder)
    (folder / "pipe").unlink()
    monkeypatch.chdir(folder)  # the path of a socket may not be long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert "'socket' is neither file" in refused(folder)


# Root can read everything, so it has to become somebody else first.
READ = """
import os, pathlib, sys
from ale_jax.sandbox.hub.recipe import read_recipe
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
read_recipe("x", pathlib.Path(sys.argv[1]))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["secret", "closed"])
def test_what_cannot_be_read_is_named(name):
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        (Path(place) / "Dockerfile").write_text("FROM scratch\n")
        (Path(place) / "secret").write_text("x")
        (Path(place) / "closed").mkdir()
        (Path(place) / name).chmod(0)
        done = subprocess.run(
            [sys.executable, "-B", "-c", READ, place],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    assert re.search(rf"ValueError: recipe .*Permission denied: '{place}/{name}'", done.stderr)
    assert "make it readable" in done.stderr


def test_a_folder_without_end_is_given_up_early(folder, monkeypatch):
    monkeypatch.setattr(recipe, "MAX_ENTRIES", 5)
    assert "holds more than 5 entries" in refused(folder)  # it has six
    monkeypatch.setattr(recipe, "MAX_ENTRIES", 6)
    assert read_recipe("x", folder)


def test_a_huge_file_is_refused_unread(folder):
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert "1024 MiB" in refused(folder)


@pytest.mark.heavy
def test_a_folder_too_deep_to_be_named_is_refused(folder):
    here = os.open(folder, os.O_PATH)
    for _ in range(2100):
        os.mkdir("dd", dir_fd=here)
        inner = os.open("dd", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert "File name too long" in refused(folder)
    finally:
        subprocess.run(["rm", "-rf", folder / "dd"], check=True)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "holds neither"),
        ({"build.sh": ""}, "holds ['Dockerfile', 'build.sh']"),
        ({".dockerignore": ""}, "has a .dockerignore"),
        ({"recipe.json": "[]"}, "must hold an object, holds list"),
        ({"recipe.json": "{"}, "damaged"),
        ({"recipe.json": '{"netwrok": "none"}'}, "has ['netwrok']"),
        ({"recipe.json": '{"network": "all"}'}, "must be one of none, default, host"),
        ({"recipe.json": '{"build_seconds": true}'}, "must be in (0, 86400]"),
        ({"recipe.json": '{"build_seconds": 0}'}, "must be in (0, 86400]"),
        ({"Dockerfile": "FROM $BASE"}, "not a variable"),
        ({"Dockerfile": "FROM a\nADD http://localhost/a /a"}, '{"network": "default"}'),
        ({"Dockerfile": "#" * (1 << 20) + "\n"}, "has 1048577 bytes"),
    ],
)
def test_a_folder_that_cannot_be_a_recipe_is_refused_with_the_reason(tmp_path, files, reason):
    tmp_path = tmp_path / "recipe"
    tmp_path.mkdir()
    if files:
        (tmp_path / "Dockerfile").write_text("FROM a\n")
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    assert reason in refused(tmp_path)


def test_a_recipe_can_be_found_from_everywhere(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert read_recipe("x", Path(folder.name)).folder == folder


def test_a_missing_folder_is_refused(tmp_path):
    assert "No such file" in refused(tmp_path / "none")


def test_a_script_must_be_executable_and_cannot_be_kept_from_the_network(tmp_path):
    (tmp_path / "build.sh").write_text("#!/bin/sh\n")
    assert f"type: chmod +x {tmp_path}/build.sh" in refused(tmp_path)
    (tmp_path / "build.sh").chmod(0o755)
    (tmp_path / "recipe.json").write_text('{"network": "none"}')
    assert "a build.sh recipe knows ['build_seconds']" in refused(tmp_path)


def test_settings_are_read(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM a\nADD http://localhost/a /a\n")
    settings = {"network": "host", "build_seconds": 7}
    (tmp_path / "recipe.json").write_text(json.dumps(settings))
    assert read_recipe("x", tmp_path).settings == Settings("host", 7)


def test_the_recipes_of_this_repository_are_in_order():
    folders = sorted(ROOT.glob("envs/*/image"))
    assert folders
    for folder in folders:
        assert read_recipe(folder.parent.name, folder).folder == folder
