"""The users that an image names, wherever it keeps them."""

import io
import stat
import tarfile
from pathlib import Path

import pytest
import requests
from docker.errors import DockerException, NotFound

from ale_jax.sandbox import docker_container
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.docker_container import PREFIX, Accounts
from ale_jax.sandbox.hub.node import MAX_LINKS, SYMLINK

ROOT = "root:x:0:0::/root:/bin/bash\n"
FOLDER = object()


class Link(str):
    """The path that a symbolic link leads to."""


class Daemon:
    """files: of the image "nix": text, a `Link`, or FOLDER."""

    def __init__(self, files):
        self.files, self.containers = files, 0

    def create_container(self, image, command, labels):
        self.containers += 1
        return {"Id": "c"}

    def remove_container(self, container, force, v):
        self.containers -= 1

    def get_archive(self, container, path):
        if path not in self.files:
            raise NotFound("no such file")
        found, packed = self.files[path], io.BytesIO()
        member = tarfile.TarInfo(Path(path).name)
        with tarfile.open(fileobj=packed, mode="w") as tar:
            if isinstance(found, Link):
                member.type, member.linkname, mode = tarfile.SYMTYPE, found, SYMLINK
                tar.addfile(member)
            elif found is FOLDER:
                member.type, mode = tarfile.DIRTYPE, 1 << 31
                tar.addfile(member)
            else:
                member.size, mode = len(found), 0o644
                tar.addfile(member, io.BytesIO(found.encode()))
        status = {"size": member.size, "mode": mode, "linkTarget": str(found)}
        return iter([packed.getvalue()]), status


def offered(files):
    """The content of /etc/passwd in a container."""
    accounts = Accounts(daemon := Daemon(files))
    accounts.learn("nix")
    assert daemon.containers == 0
    with accounts.offer("nix", 777) as mounts:
        passwd, group = mounts
        assert (passwd["Target"], group["Target"]) == ("/etc/passwd", "/etc/group")
        assert stat.S_IMODE(Path(passwd["Source"]).stat().st_mode) == 0o644
        # By this name, the folder of a process that is killed meanwhile is found.
        assert Path(passwd["Source"]).parent.name.startswith(f"{PREFIX}{Owner.current()}-")
        return Path(passwd["Source"]).read_text()


AGENT = "agent:x:777:777::/work:/bin/bash\n"


def test_the_agent_is_added_and_replaces_one_of_the_image():
    assert offered({"/etc/passwd": ROOT}) == ROOT + AGENT
    assert offered({"/etc/passwd": "agent:x:5:5::/:/bin/sh\n" + ROOT}) == ROOT + AGENT
    assert offered({}) == AGENT


def test_a_link_is_followed_as_in_images_of_nix():
    store = "/nix/store/x-passwd"
    files = {"/etc/passwd": Link("/etc/static/passwd"), "/etc/static/passwd": Link(store)}
    assert offered(files | {store: ROOT}) == ROOT + AGENT
    assert offered(files) == AGENT  # it leads nowhere


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"/etc/passwd": Link("/etc/passwd")}, f"behind more than {MAX_LINKS} links: make it a"),
        ({"/etc/group": FOLDER}, "/etc/group is a directory or a device: make it a file"),
        ({"/etc/passwd": Link("/etc"), "/etc": FOLDER}, "/etc/passwd is a directory"),
        ({"/etc/passwd": ROOT * 9}, "/etc/passwd has 252 bytes, but may have 200"),
    ],
    ids=["circle", "folder", "link to a folder", "large"],
)
def test_what_is_no_file_is_an_error_of_the_start_that_names_the_image(files, told, monkeypatch):
    monkeypatch.setattr(docker_container, "MAX_BYTES", 200)
    daemon = Daemon(files)
    # What the runtime turns into a SandboxStartError.
    trouble = (DockerException, requests.RequestException, OSError)
    with pytest.raises(trouble, match=f"image 'nix': .*{told}"):
        Accounts(daemon).learn("nix")
    assert daemon.containers == 0
