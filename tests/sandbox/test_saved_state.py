"""A state that was put back is the state that was saved, or it says that it is not."""

import pytest

from ale_jax.sandbox.api import load, save

pytestmark = pytest.mark.each_runtime


@pytest.mark.parametrize(
    "command",
    ["cat a.txt", "mkdir -p d/e; echo hi > d/b; chmod 700 d/b; ln -s d/b l", "exit 3", "(cd /tmp)"],
)
def test_what_lies_in_files_comes_back(box, command):
    box.write({"a.txt": b"hello\n"})
    box.run(command)
    saved = save(box)
    box.run("rm -rf *; echo else > c.txt; X=1; cd /")
    assert load(box, saved)
    assert box.read("a.txt") == b"hello\n"
    assert box.run("pwd; echo $X").output == "/work\n\n"


@pytest.mark.parametrize(
    "command",
    [
        "cd /tmp",
        "X=1",
        "export HOME=/tmp",
        "f() { :; }",
        "set -u",
        "umask 077",
        "ulimit -f 100",
        "trap 'echo x' USR1",
        "false",
        "sleep 100 &",
        "setsid sleep 100 >/dev/null 2>&1 </dev/null & disown; sleep 0.2",
        "chmod 000 a.txt",
    ],
)
def test_what_a_snapshot_does_not_hold_is_noticed(box, command):
    box.write({"a.txt": b"hello\n"})
    box.run(command)
    assert not load(box, save(box))


def test_a_session_that_hides_is_not_believed(box):
    box.run("find() { :; }")
    assert save(box) is None
