"""User ids of the host: each sandbox has its own."""

import concurrent.futures
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ale_jax.sandbox import bubblewrap, host_ids
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox.host_view import runner_pid
from tests.sandbox.conftest import SPEC

CLAIM = """
import sys
from pathlib import Path
from ale_jax.sandbox import host_ids
host_ids.LOCKS = Path(sys.argv[1])
print(host_ids.claim().number, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def two_ids(monkeypatch, tmp_path):
    monkeypatch.setattr(host_ids, "LOCKS", tmp_path / "locks")
    monkeypatch.setenv(host_ids.VARIABLE, "70000-70001")


def test_ids_differ_until_they_are_released(two_ids):
    one, other = host_ids.claim(), host_ids.claim()
    assert {one.number, other.number} == {70000, 70001}
    with pytest.raises(SandboxStartError, match="all 2 user ids of ALE_SANDBOX_UIDS=70000-70001"):
        host_ids.claim()
    one.release()
    one.release()
    again = host_ids.claim()
    assert again.number == one.number
    for each in (other, again):
        each.release()


@pytest.mark.heavy
def test_another_process_has_other_ids_and_leaves_them_when_it_is_killed(two_ids):
    line = [sys.executable, "-c", CLAIM, str(host_ids.LOCKS)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        theirs, mine = int(other.stdout.readline()), host_ids.claim()
        assert {theirs, mine.number} == {70000, 70001}
        other.kill()
        other.wait()
        second = host_ids.claim()
    assert second.number == theirs
    for each in (mine, second):
        each.release()


@pytest.mark.parametrize("text", ["5", "9-5", "a-b", "0-5", "1-99999999999", "1-2-3"])
def test_an_invalid_range_is_refused(monkeypatch, text):
    monkeypatch.setenv(host_ids.VARIABLE, text)
    with pytest.raises(SandboxStartError, match="must be a range like"):
        host_ids.claim()


def test_a_container_with_few_ids_gives_its_upper_half(monkeypatch, tmp_path):
    monkeypatch.delenv(host_ids.VARIABLE, raising=False)
    monkeypatch.setattr(host_ids, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(host_ids, "UID_MAP", tmp_path / "uid_map")
    host_ids.UID_MAP.write_text("0 1000 1\n1 100000 65535\n")
    user = host_ids.claim()
    assert 32768 <= user.number <= 65535
    user.release()


@pytest.mark.heavy
@pytest.mark.skipif(os.getuid() != 0, reason="users of the host are only root's to choose")
def test_sandboxes_run_as_users_of_their_own():
    if reason := bubblewrap.probe(SPEC):
        pytest.skip(f"bubblewrap: {reason}")
    runtime = pick_runtime("bubblewrap", SPEC)
    with runtime.start(SPEC, {}) as one, runtime.start(SPEC, {}) as other:
        users = {
            Path("/proc", str(runner_pid(box.later)), "root", "work").stat().st_uid
            for box in (one, other)
        }
    assert len(users) == 2 and 0 not in users


def test_threads_that_release_an_id_at_once_close_its_descriptor_once(two_ids):
    """Closed again, its number may by then be that of another file."""
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for _ in range(500):
                user = host_ids.claim()
                at_once = threading.Barrier(4)

                def release(user=user, at_once=at_once):
                    at_once.wait(60)
                    user.release()

                for released in [threads.submit(release) for _ in range(4)]:
                    released.result()
    finally:
        sys.setswitchinterval(switch_interval)
