"""The tables, and the hardware and software of the run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import docker
from docker.errors import DockerException
from rich.console import Console
from rich.table import Table

from benchmarks.sandbox.findings import PERCENTILES, Figure, Finding, Sample, Trial
from benchmarks.sandbox.summary import BARS, Figures

WIDTH = 170  # if the output is not a terminal
LIBRARIES = ("docker", "fastapi", "httpx", "numpy", "ray", "uvicorn")


def show(findings: Mapping[str, list[Finding]], total: Figures) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in (_figures(findings), _attacks(findings), _bars(total)):
        if table.row_count:
            console.print(table)


def _figures(findings: Mapping[str, list[Finding]]) -> Table:
    heads = ("where", "what", "median", *(f"p{each}" for each in PERCENTILES[1:]), "repetitions")
    table = Table(*heads, title="Figures")
    for where, each in _rows(findings):
        if isinstance(each, Sample):
            cells = (f"{each.percentile(percent):.4g}" for percent in PERCENTILES)
            table.add_row(where, each.what, *cells, str(len(each.values)))
        elif isinstance(each, Figure):
            table.add_row(where, each.what, f"{each.value:.6g}", *[""] * len(PERCENTILES))
    return table


def _attacks(findings: Mapping[str, list[Finding]]) -> Table:
    heads = ("where", "kind", "attack", "survived", "stopped by", "seen", "neighbour's p95")
    table = Table(*heads, title="Attacks")
    for where, each in _rows(findings):
        if isinstance(each, Trial):
            ratio = "" if each.neighbour_ratio is None else f"x {each.neighbour_ratio:g}"
            verdict = "yes" if each.survived else "NO"
            cells = (each.kind, each.attack, verdict, each.stopped_by, _printable(each.seen))
            table.add_row(where, *cells, ratio)
    return table


def _bars(total: Figures) -> Table:
    table = Table("what", "bar", "measured", "holds", title="Bars (the worst runtime counts)")
    for bar in BARS:
        value = total.get(bar.key)
        measured, verdict = "not measured", ""
        if value is not None:
            measured, verdict = f"{value:.4g}", "yes" if bar.holds(value) else "NO"
        table.add_row(bar.what, str(bar), measured, verdict)
    return table


def _rows(findings: Mapping[str, list[Finding]]) -> Iterable[tuple[str, Finding]]:
    return ((where, each) for where, found in findings.items() for each in found)


def _printable(text: str) -> str:
    """Text from a sandbox, made safe: without control characters, and with escaped markup."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return shown.replace("[", "\\[")


def hardware() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{os.cpu_count()} CPU cores ({platform.machine()}), {memory} GB of memory"


def versions() -> dict[str, str]:
    found = {name: version(name) for name in LIBRARIES}
    found |= {"python": platform.python_version(), "kernel": platform.release()}
    try:
        found["dockerd"] = docker.from_env().version()["Version"]
    except DockerException:
        found["dockerd"] = "none answers"
    try:
        bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True)
        found["bubblewrap"] = bwrap.stdout.split()[-1]
    except FileNotFoundError:
        found["bubblewrap"] = "not installed"
    return found
