"""How busy the machine is, out of files of /proc that were written by hand."""

import pytest

from ale_jax.sandbox.pool import events
from ale_jax.sandbox.pool.events import NodeLoad

#             user nice system idle iowait irq softirq steal guest
BEFORE = "cpu  100 0    50     800  50     0   0       0     0\ncpu0 1 2 3\n"
AFTER = "cpu   150 5    60     850  60     5   5       15    0\ncpu0 1 2 3\n"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "STAT", tmp_path / "stat")
    monkeypatch.setattr(events, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "stat").write_text(BEFORE)
    return tmp_path


def test_the_share_of_busy_ticks_since_it_was_last_asked(proc):
    load = NodeLoad()
    assert load.cpu_percent() == 0.0
    (proc / "stat").write_text(AFTER)
    # 90 of 150 ticks: 50 + 5 + 10 + 5 + 5 + 15; idle 50 and iowait 10 are the others.
    assert load.cpu_percent() == pytest.approx(60.0)
    assert load.cpu_percent() == pytest.approx(60.0)  # no tick since then


def test_memory_that_cannot_be_freed(proc):
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n")
    assert NodeLoad().memory() == (600 << 10, 1000 << 10)
