"""Measures the cost, capacity and robustness of sandboxes on this machine, in tables and as JSON.

    python -m benchmarks.sandbox [--quick] [--runtimes=docker,bubblewrap] [--only=latency,attacks]

Progress is written to stderr and tables to stdout. The last line is one JSON object: the figures of
the worst runtime (counts are summed over all), and then of each. Run it on an otherwise idle
machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Mapping

from ale_jax.sandbox import bubblewrap, docker_runtime
from benchmarks.choices import some_of
from benchmarks.sandbox import (
    crowd,
    deaths,
    disk,
    hostile,
    latency,
    leaks,
    peers,
    report,
    restart,
    siege,
    starts,
)
from benchmarks.sandbox.findings import Finding, Trial, say
from benchmarks.sandbox.plan import FULL, QUICK, SPEC, Plan
from benchmarks.sandbox.summary import figures_of, overall

PROBES = {"docker": docker_runtime.probe, "bubblewrap": bubblewrap.probe}
PARTS: Mapping[str, Callable[[str, Plan], list[Finding]]] = {
    "latency": latency.measure,
    "starts": starts.measure,
    "crowd": crowd.measure,
    "deaths": deaths.measure,
    "restart": restart.measure,
    "leaks": leaks.measure,
    "disk": disk.measure,
    "attacks": siege.measure,
    "hostile": hostile.measure,
}
PEERS = "peers"
INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a part failed."""
    options = _parse(arguments)
    plan = QUICK if options.quick else FULL
    missing = {name: why for name in options.runtimes if (why := PROBES[name](SPEC))}
    runtimes = [name for name in options.runtimes if name not in missing]
    if PEERS in options.only and (why := peers.probe(plan)):
        missing[PEERS] = why
    for name, why in missing.items():
        say(f"{name}: not measured: {why}")
    # The proxy logs what it refuses, and the attacks are refused on purpose.
    logging.getLogger("ale_jax.sandbox.booting").setLevel(logging.ERROR)
    run = Run(plan)
    # SIGTERM is handled like an interrupt at the terminal, so that everything is cleaned up.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        run.measure(runtimes, [part for part in options.only if part not in missing])
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    run.print_results(" ".join(["python -m benchmarks.sandbox", *arguments]), missing)
    return 1 if run.failures else 0


class Run:
    """findings: by runtime, with those of peers under PEERS. failures: of parts."""

    def __init__(self, plan: Plan):
        self.findings: dict[str, list[Finding]] = {}
        self.failures: dict[str, str] = {}
        self._plan = plan

    def measure(self, runtimes: list[str], parts: list[str]) -> None:
        for part in (each for each in PARTS if each in parts):
            for name in runtimes:
                self._attempt(part, name, lambda p=part, n=name: PARTS[p](n, self._plan))
        if PEERS in parts:
            self._attempt(PEERS, PEERS, lambda: peers.swe_rex(self._plan))

    def _attempt(self, part: str, where: str, measure: Callable[[], list[Finding]]) -> None:
        try:
            self.findings.setdefault(where, []).extend(measure())
        except Exception as error:  # of any kind, as the other parts must still be measured
            say(f"{where}: {part} failed:\n{traceback.format_exc()}")
            self.failures[f"{where}: {part}"] = f"{type(error).__name__}: {error}"

    def print_results(self, command: str, missing: Mapping[str, str]) -> None:
        figures = {where: figures_of(found) for where, found in self.findings.items()}
        of_peers = figures.pop(PEERS, {})
        total = overall(figures, of_peers)
        report.show(self.findings, total)
        attacks = [
            {"runtime": where} | dataclasses.asdict(each)
            for where, found in self.findings.items()
            for each in found
            if isinstance(each, Trial)
        ]
        about = {"hardware": report.hardware(), "versions": report.versions(), "command": command}
        about |= {"missing": missing, "failures": self.failures, "runtimes": figures}
        print(json.dumps({"benchmark": "sandbox", **total, **about, "attacks": attacks}))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.sandbox", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, within a minute")
    parser.add_argument("--runtimes", type=some_of(PROBES), default=list(PROBES))
    parser.add_argument("--only", type=some_of([*PARTS, PEERS]), default=[*PARTS, PEERS])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
