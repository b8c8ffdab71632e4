"""Computes figures from findings, for each runtime and for the worst of them, and the bars."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping

from benchmarks.sandbox.findings import Figure, Finding, Sample, Trial

Figures = dict[str, float | int | None]
# Keys that are always in the result; None if a run has not measured them.
REQUIRED = (
    *("session_ms_inprocess_p50", "session_ms_ray_p50", "session_ms_http_p50"),
    *("docker_start_ratio", "warm_start_ms_p50", "reset_ms_p50", "snapshot_ms_p50"),
    *("restore_ms_p50", "commands_run", "commands_failed", "attacks_tried", "attacks_survived"),
    *("leaked_objects", "detect_s_p95", "replace_s_p95"),
    *("hostile_episodes", "hostile_oracles_unpaid"),
)
SUMMED = (
    *("commands_run", "commands_failed", "attacks_tried", "attacks_survived", "attacks_succeeded"),
    *("leaked_objects", "sibling_episodes", "sibling_episodes_changed", "crowd_silent"),
    *("hostile_episodes", "hostile_oracles_unpaid", "hostile_breaches", "hostile_replaced"),
    *("restart_lost", "restart_commands", "restart_failed", "restart_not_once"),
)

RATES = ("crowd_starts_per_s", "restart_per_s")  # the lower, the worse


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar for a figure: at most `limit`, or at least."""

    key: str
    what: str
    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(value, self.limit)

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


BARS = (
    Bar("session_ms_inprocess_p50", "session command, in process, ms", 1.0),
    Bar("session_ms_ray_p50", "session command, Ray actor, ms", 3.0),
    Bar("session_ms_http_p50", "session command, HTTP, ms", 5.0),
    Bar("docker_start_ratio", "cold start / docker run of the same flags", 1.3),
    Bar("warm_start_ms_p50", "start from the warm pool, ms", 20.0),
    Bar("reset_ms_p50", "reset, ms", 20.0),
    Bar("snapshot_ms_p50", "snapshot of 10 MB, ms", 50.0),
    Bar("restore_ms_p50", "restore of 10 MB, ms", 50.0),
    Bar("disk_fork_ms_p50", "fork of a root on disk, ms", 200.0),
    Bar("docker_exec_ratio", "docker exec / session command", 10.0, at_least=True),
    Bar("swe_rex_ratio", "SWE-ReX, local / session command", 10.0, at_least=True),
    Bar("crowd_silent", "sandboxes of the crowd that do not answer", 0),
    Bar("commands_failed", "commands of the crowd that failed", 0),
    Bar("crowd_steady_ms_p99", "command in one of the crowd, 100 a second, ms (p99)", 100.0),
    Bar("crowd_heartbeat_cores", "heartbeats of the crowd, cores", 0.2),
    Bar("restart_lost", "sandboxes lost by restarts of the service", 0),
    Bar("restart_failed", "commands failed by restarts of the service", 0),
    Bar("restart_not_once", "commands not run exactly once, despite restarts", 0),
    Bar("leaked_objects", "things left after the next start", 0),
    Bar("attacks_succeeded", "attacks that were not survived", 0),
    Bar("neighbour_ratio_max", "a neighbour's p95 under attack / before", 2.0),
    Bar("detect_s_p95", "a kill is noticed, s", 2.0),
    Bar("replace_s_p95", "and replaced, s", 5.0),
    Bar("sibling_episodes_changed", "siblings' episodes changed", 0),
    Bar("hostile_oracles_unpaid", "oracles after an attack that did not earn 1", 0),
)


def figures_of(findings: Iterable[Finding]) -> Figures:
    """The figures by their keys in the JSON."""
    figures: Figures = {}
    trials = []
    for each in findings:
        if isinstance(each, Sample):
            figures |= each.figures()
        elif isinstance(each, Figure):
            figures[each.key] = each.value
        else:
            trials.append(each)
    return figures | (_of_trials(trials) if trials else {})


def _of_trials(trials: list[Trial]) -> Figures:
    survived = sum(each.survived for each in trials)
    figures: Figures = {"attacks_tried": len(trials), "attacks_survived": survived}
    figures["attacks_succeeded"] = len(trials) - survived
    if ratios := [each.neighbour_ratio for each in trials if each.neighbour_ratio is not None]:
        figures["neighbour_ratio_max"] = max(ratios)
    return figures


def overall(runtimes: Mapping[str, Figures], peers: Figures) -> Figures:
    """Counts summed over all runtimes, other figures of the worst runtime, and the times of peers
    relative to ours."""
    total: Figures = dict.fromkeys(REQUIRED)
    for figures in runtimes.values():
        for key, value in figures.items():
            known = total.get(key)
            if known is None:
                total[key] = value
            elif key in SUMMED:
                total[key] = known + value
            else:
                total[key] = min(known, value) if key in RATES else max(known, value)
    docker = runtimes.get("docker", {})
    ours, ours_http = total["session_ms_inprocess_p50"], total["session_ms_http_p50"]
    ratios = {
        "docker_exec_ratio": (
            docker.get("docker_exec_ms_p50"),
            docker.get("session_ms_inprocess_p50"),
        ),
        "swe_rex_ratio": (peers.get("swe_rex_local_ms_p50"), ours),
        "swe_rex_http_ratio": (peers.get("swe_rex_http_ms_p50"), ours_http),
    }
    return total | peers | {k: round(a / b, 2) for k, (a, b) in ratios.items() if a and b}
