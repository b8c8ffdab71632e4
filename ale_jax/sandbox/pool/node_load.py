"""How busy this machine is, from /proc."""

from __future__ import annotations

from pathlib import Path

STAT, MEMINFO = Path("/proc/stat"), Path("/proc/meminfo")


class NodeLoad:
    """cpu_percent: 0 to 100 of all cores together, since it was last asked."""

    def __init__(self):
        self._busy, self._total = _cpu_times(STAT.read_text())
        self._percent = 0.0

    def cpu_percent(self) -> float:
        busy, total = _cpu_times(STAT.read_text())
        if total > self._total:
            self._percent = 100.0 * (busy - self._busy) / (total - self._total)
            self._busy, self._total = busy, total
        return self._percent

    def memory(self) -> tuple[int, int]:
        """Bytes in use that the kernel could not free, and bytes that there are."""
        return _memory(MEMINFO.read_text())


def _cpu_times(stat: str) -> tuple[int, int]:
    """Busy and total clock ticks (proc(5)); waiting for a disk is idleness, too."""
    user, nice, system, idle, iowait, *rest = map(int, stat.split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + iowait


def _memory(meminfo: str) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total - free, total
