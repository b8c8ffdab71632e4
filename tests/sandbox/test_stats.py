"""Statistics of a sandbox: each figure follows what happens inside."""

import pytest

from ale_jax.sandbox.blocking import wait_for
from ale_jax.sandbox.runner.usage import read_usage

pytestmark = pytest.mark.each_runtime

MB = 1 << 20
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def stats(box):
    return wait_for(box.later.stats())


@pytest.fixture
def counted_box(runtime, box):
    if "cgroup" not in runtime.capabilities["memory"]:
        pytest.skip("control groups are bubblewrap's, and only root makes them")
    return box


def test_disk_is_what_lies_in_all_writable_directories(box):
    before = stats(box)
    box.run(f"head -c {MB} /dev/zero > f; head -c {2 * MB} /dev/zero > /tmp/f")
    assert stats(box).disk_bytes - before.disk_bytes == 3 * MB
    assert before.disk_limit_bytes == 2 * 8 * MB  # files_mb of each of the two
    box.run("rm f")
    assert stats(box).disk_bytes - before.disk_bytes == 2 * MB


def test_processes_are_the_agents(box):
    box.run("true")
    before = stats(box).processes  # the session's bash
    box.run("sleep 100 & sleep 100 &")
    assert (before, stats(box).processes) == (1, 3)


def test_memory_counts_what_processes_and_files_hold(counted_box):
    before = stats(counted_box).memory_bytes
    counted_box.run(f"head -c {6 * MB} /dev/zero > f")
    with_file = stats(counted_box).memory_bytes
    assert 5 * MB <= with_file - before < 12 * MB  # the kernel charges in batches
    hold = "import time; held = b'x' * (20 << 20); print(1, flush=True); time.sleep(99)"
    counted_box.run(f'python3 -c "{hold}" > said & until [ -s said ]; do sleep 0.01; done')
    with_process = stats(counted_box).memory_bytes
    assert 19 * MB <= with_process - with_file < 40 * MB
    counted_box.reset()
    assert stats(counted_box).memory_bytes < with_file


def test_cpu_of_the_dead_counts_too(counted_box):
    before = stats(counted_box).cpu_seconds
    counted_box.write({"burn.py": BURN.encode()})
    counted_box.run("python3 burn.py")
    used = stats(counted_box).cpu_seconds - before
    assert 0.5 <= used < 2.0
    assert stats(counted_box).cpu_seconds - before - used < 0.5  # nothing burns on


def plant(directory, **files):
    directory.mkdir()
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_version_1_of_control_groups(tmp_path):
    memory = plant(
        tmp_path / "memory",
        memory__usage_in_bytes="5000\n",
        memory__stat="cache 900\ninactive_file 1\ntotal_inactive_file 2000\n",
    )
    cpu = plant(tmp_path / "cpu", cpu__stat="nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    account = plant(tmp_path / "cpuacct", cpuacct__usage="2500000000\n")
    assert read_usage([memory, cpu, account]) == {"cpu_seconds": 2.5, "memory_bytes": 3000}


def test_version_2_of_control_groups(tmp_path):
    group = plant(
        tmp_path / "group",
        memory__current="5000\n",
        memory__stat="anon 900\ninactive_file 2000\n",
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    )
    assert read_usage([group]) == {"cpu_seconds": 2.5, "memory_bytes": 3000}


def test_what_nothing_counts_is_unknown(tmp_path):
    nothing = {"cpu_seconds": None, "memory_bytes": None}
    assert read_usage([]) == read_usage([tmp_path / "missing"]) == nothing
