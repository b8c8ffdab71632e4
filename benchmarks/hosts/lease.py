"""Is a second run of a folder refused on another machine, and one that was silent replaced?"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable

from benchmarks.hosts.runs import COMPARED, differences, start
from benchmarks.survival.plan import NO_SANDBOXES
from benchmarks.survival.runs import Bench, NoMeasurement
from benchmarks.survival.trials import DONE

STEPS = 200
REFUSED = 2
LIMIT_S = 600.0
# Another machine has another name and does not see our processes.
ELSEWHERE = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
ELSEWHERE += ["sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]


@dataclasses.dataclass(frozen=True)
class Fenced:
    """refused_seconds: from the start of a second run until it ended. old_code: of a run that was
    stopped, replaced, and continued; told: whether it said so. differing: of the run that replaced
    it, from an unbroken one.
    """

    refused_code: int | None
    refused_seconds: float
    old_code: int | None
    told: bool
    differing: list[str]

    @property
    def right(self) -> bool:
        return self.refused_code == self.old_code == REFUSED and self.told and not self.differing


def measure(bench: Bench, say: Callable[[str], None]) -> Fenced:
    options = (*COMPARED, *NO_SANDBOXES, f"--config.rl.steps={STEPS}")
    unbroken = start(bench, "lease-unbroken", 1, 1, options)
    if unbroken.finish(LIMIT_S) != DONE:
        raise NoMeasurement(f"a run without any fault ended by {unbroken.last_line()!r}")
    old = start(bench, "lease", 1, 1, options)
    old.require_steps(2)
    second = bench.run("lease", *options, "--spawn=1")
    second.line[:0] = ELSEWHERE
    second.variables["XLA_FLAGS"] = old.variables["XLA_FLAGS"]
    began = time.monotonic()
    second.start()
    code, seconds = second.finish(LIMIT_S), time.monotonic() - began
    say(f"the second run ended with {code} after {seconds:.1f} s: {second.last_line()}")
    old.send(signal.SIGSTOP)
    second.start()
    second.require(second.trains, "it did not take over")
    old.send(signal.SIGCONT)
    old_code = old.finish(LIMIT_S)
    told = "has taken over" in old.printed()
    say(f"the old run ended with {old_code}, and said that it was replaced: {told}")
    if second.finish(LIMIT_S) != DONE:
        raise NoMeasurement(f"the run that took over ended by {second.last_line()!r}")
    differing = differences(second.folder, unbroken.folder)
    return Fenced(code, round(seconds, 1), old_code, told, differing)
