"""How benchmarks end: with their runs, and not before them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launching import launch
from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENDS_S = 120.0  # only against a hang
# A warm start that would go on for long.
RUN = """
import sys
from pathlib import Path
from benchmarks.launching import launch
changes = {"warm_start.max_steps": 10**6, "warm_start.target_success": 1.0}
launch("configs/smoke.py", Path(sys.argv[1]), changes)
"""
BENCH = """
import signal
from benchmarks.survival.runs import Bench
with Bench.open() as bench:
    print(bench.folder, flush=True)
    signal.pause()
"""


def start(program, *words):
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program, *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_benchmark_that_is_ended_ends_its_run_and_waits_for_it(tmp_path):
    with start(RUN, tmp_path / "run") as benchmark:
        # SIGTERM is for this process alone: nobody else tells the run.
        assert any(re.search(r"warm start \d+/", line) for line in benchmark.stdout)
        benchmark.send_signal(signal.SIGTERM)
        _, told = benchmark.communicate(timeout=ENDS_S)
    assert benchmark.returncode == 130, told
    # The run ends by itself, and in time: it is the first to say so.
    run, last = told.splitlines()[-2:]
    assert run.startswith("interrupted: the same command continues") and last == "interrupted"


def test_the_folder_of_a_bench_is_removed_when_it_is_ended():
    with start(BENCH) as benchmark:
        folder = Path(benchmark.stdout.readline().strip())
        assert folder.is_dir()
        benchmark.send_signal(signal.SIGTERM)
        _, told = benchmark.communicate(timeout=ENDS_S)
    assert (benchmark.returncode, told, folder.exists()) == (130, "interrupted\n", False)


def test_a_run_that_does_not_finish_is_an_error_with_its_exit_code(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(subprocess.CalledProcessError) as error:
        launch("configs/no_such.py", tmp_path / "run", {})
    assert error.value.returncode == 2
    assert signal.getsignal(signal.SIGTERM) is before
