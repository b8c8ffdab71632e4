"""Which runtime is picked, and what is said where none works."""

import logging

import pytest

from ale_jax.sandbox import bubblewrap, cgroups
from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.conftest import SPEC

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]

needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.probe(SPEC) is not None, reason=f"bubblewrap: {bubblewrap.probe(SPEC)}"
)


@pytest.fixture
def no_docker(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")


def test_unknown_name():
    with pytest.raises(ValueError, match="'podman' must be one of auto, docker, bubblewrap"):
        pick_runtime("podman", SPEC)


def test_what_is_asked_for_is_not_replaced(no_docker):
    with pytest.raises(SandboxStartError, match=r"no daemon answers .*; type: make runtimes"):
        pick_runtime("docker", SPEC)


@needs_bubblewrap
def test_auto_takes_what_works_and_says_why(no_docker, caplog):
    with caplog.at_level(logging.INFO):
        assert pick_runtime("auto", SPEC).name == "bubblewrap"
    assert "sandboxes run in bubblewrap (docker is not usable: no daemon" in caplog.text


def test_none_works(no_docker, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxStartError, match="type: apt-get install bubblewrap") as refusal:
        pick_runtime("auto", SPEC)
    assert "make runtimes" in str(refusal.value)


@needs_bubblewrap
def test_a_host_that_does_not_answer_in_time_is_told_like_one_that_cannot(no_docker, monkeypatch):
    monkeypatch.setattr(bubblewrap, "PROBE_S", 0.0)
    assert "did not answer within 0 s" in bubblewrap.probe(SPEC)
    with pytest.raises(SandboxStartError, match=r"bubblewrap.* did not answer within 0 s"):
        pick_runtime("auto", SPEC)


def test_image_without_recipe(runtime):
    if runtime.name != "docker":
        pytest.skip("images are Docker's")
    with pytest.raises(SandboxStartError, match="'ale-nowhere' is missing: there is no recipe"):
        pick_runtime("docker", SandboxSpec(image="ale-nowhere"))


def test_an_image_of_others_that_is_not_here_says_what_to_type(runtime):
    if runtime.name != "docker":
        pytest.skip("images are Docker's")
    image = "nowhere/python:3.11-slim"
    told = f"type, where the sandboxes run: ale-sandbox images build --pull {image}$"
    with pytest.raises(SandboxStartError, match=told):
        pick_runtime("docker", SandboxSpec(image=image))
    with pytest.raises(ImageMissing, match=told), runtime.start(SandboxSpec(image=image), {}):
        pass


@needs_bubblewrap
def test_bubblewrap_has_no_image_but_the_hosts_usr():
    other = SandboxSpec(image="python:3.12")
    told = r"no image 'python:3.12', only the host's own /usr.*use Docker \(--runtime=docker\)"
    with pytest.raises(SandboxStartError, match=told):
        pick_runtime("bubblewrap", other)
    with pytest.raises(ImageMissing, match=told):
        pick_runtime("bubblewrap", SPEC).start(other, {})


@pytest.fixture
def without_groups(monkeypatch):
    def refuse():
        raise cgroups.CgroupsUnavailable("read-only")

    monkeypatch.setattr(cgroups, "find", refuse)


HOG = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(30)'"
SHARED_HOG = (
    "python3 -c 'import mmap, time; m = mmap.mmap(-1, 60 << 20); "
    "[m.write(bytes(4096)) for _ in range(15 << 10)]; time.sleep(30)'"
)


@needs_bubblewrap
@pytest.mark.parametrize("hog", [HOG, SHARED_HOG])
def test_without_control_groups_all_processes_together_are_limited(without_groups, hog):
    with pick_runtime("bubblewrap", SPEC).start(SPEC, {}) as sandbox:
        result = sandbox.run(f"{hog} & {hog} & wait -n; echo $?", timeout=10)
        assert result.output.endswith("\n137\n")
        # The other goes on. Bash may first report the end of this one.
        assert sandbox.run("jobs -r | wc -l").output.splitlines()[-1] == "1"


@needs_bubblewrap
def test_without_control_groups_memory_is_not_hoarded_outside_of_processes(without_groups):
    with pick_runtime("bubblewrap", SPEC).start(SPEC, {}) as sandbox:
        memfd = sandbox.run("python3 -c 'import os; os.memfd_create(chr(97))'").output
        calls = "c.shmget(7, 4096, 0o1600), c.semget(0, 9, 0o600), c.msgget(0, 0o600)"
        made = sandbox.run(f"python3 -c 'import ctypes; c = ctypes.CDLL(None); print({calls})'")
        assert "PermissionError" in memfd
        assert made.output == "-1 -1 -1\n"


SOCKET_HOARD = """
import os, socket, time
for _ in range(3):
    os.fork()
kept = [socket.socketpair() for _ in range(100)]
for one, _ in kept:
    one.setblocking(False)
    try:
        while one.send(b"x" * 60000):
            pass
    except BlockingIOError:
        pass
time.sleep(30)
"""


@needs_bubblewrap
def test_without_control_groups_socket_buffers_count(without_groups):
    with pick_runtime("bubblewrap", SPEC).start(SPEC, {}) as sandbox:
        sandbox.write({"hoard.py": SOCKET_HOARD.encode()})
        assert sandbox.run("python3 -S hoard.py", timeout=20).exit_code == 137
        assert sandbox.run("echo alive").output == "alive\n"


@needs_bubblewrap
def test_without_control_groups_each_process_is_limited_and_it_says_so(without_groups):
    runtime = pick_runtime("bubblewrap", SPEC)
    words = "rlimit for each process, and the runner watches their sum (read-only)"
    assert runtime.capabilities["memory"] == words
    with runtime.start(SPEC, {}) as sandbox:
        assert "MemoryError" in sandbox.run("python3 -c 'b\"x\" * (200 << 20)'").output
        flood = sandbox.run("for i in {1..100}; do sleep 9 & done", timeout=0.5)
        assert "Resource temporarily unavailable" in flood.output
        sandbox.kill_processes()
        assert sandbox.run("echo alive").output == "alive\n"


@needs_bubblewrap
def test_start_that_fails_says_what_the_machine_said(monkeypatch):
    runtime = pick_runtime("bubblewrap", SPEC)
    monkeypatch.setattr(bubblewrap, "COMMAND", ["python3", "-c", "raise SystemExit('broken')"])
    with pytest.raises(SandboxStartError, match=r"did not come up.*broken"):
        runtime.start(SPEC, {})


@needs_bubblewrap
def test_two_runtimes_of_one_process_do_not_share_their_groups():
    first, second = (pick_runtime("bubblewrap", SPEC) for _ in range(2))
    with first.start(SPEC, {}) as one, second.start(SPEC, {}) as other:
        assert one.run("echo 1").output == "1\n" and other.run("echo 2").output == "2\n"
