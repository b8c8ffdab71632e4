"""Directories and machines that a verifier has replaced, over HTTP."""

import pytest

from ale_jax.sandbox.api import ImageMissing
from ale_jax.sandbox.spec import WORK
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.test_sandboxes_over_http import commands


def test_a_directory_is_replaced_by_one_that_nobody_was_in(remote):
    remote.run("mkdir -p d/deep; echo old > d/deep/x; ln -s /etc d/link; sleep 321 &")
    remote.replace_directory(f"{WORK}/d", {"a/b c": b"new", "e": b""})
    assert remote.run("find d -type f | sort; stat -c %a d").output == "d/a/b c\nd/e\n700\n"
    assert remote.read("d/a/b c") == b"new" and "sleep 321" not in commands(remote)
    remote.run("rm -r d; ln -s /etc d")
    remote.replace_directory(f"{WORK}/d", {})
    assert remote.run("stat -c %F d; ls d").output == "directory\n"
    for path in ("d", f"{WORK}/../etc", "/"):
        with pytest.raises(ValueError, match="absolute"):
            remote.replace_directory(path, {})
    with pytest.raises(OSError, match="Read-only"):
        remote.replace_directory("/usr/lib/new", {"x": b""})


@pytest.mark.heavy
def test_another_machine_under_the_same_id_has_seen_nothing(real):
    with real.client() as client, client.start(SPEC) as box:
        box.run("echo x > x; X=1; cd /tmp")
        box.replace_machine()
        assert box.run('ls; echo "$X" $PWD').output == f" {WORK}\n"
        assert box.status().generation == 0 and box.alive()
        with pytest.raises(ImageMissing, match="ale-no-such-image"):
            box.replace_machine("ale-no-such-image")
        assert box.alive()
