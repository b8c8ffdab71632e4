"""The same command through what others offer on this machine: docker exec, SWE-ReX."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

from benchmarks.sandbox import bare_docker
from benchmarks.sandbox.findings import Figure, Finding, Sample, say
from benchmarks.sandbox.plan import SPEC, Plan

SWE_REX = "swe-rex==1.4.0"
NEEDS = ("aiohttp",)  # which its package forgets to ask for
SCRIPT = Path(__file__).with_name("swe_rex_commands.py")
RUN_S = 900.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ale-jax", "benchmarks")


def docker_exec(plan: Plan) -> list[Finding]:
    say(f"docker: {plan.peer_commands} times docker exec")
    times = bare_docker.exec_ms(SPEC.image, plan.peer_commands)
    return [Sample("docker_exec_ms", "docker exec for each command, ms", times)]


def swe_rex(plan: Plan) -> list[Finding]:
    """Errors: RuntimeError if it cannot be installed, or does not run."""
    python = _environment(plan.installs_peers)
    say(f"SWE-ReX: {plan.peer_commands} commands in process, and over HTTP")
    # As it wants it: other terminals make its sessions unreliable.
    said = _run([python, SCRIPT, str(plan.peer_commands)], os.environ | {"TERM": "dumb"})
    (answer,) = [line for line in said.splitlines() if line.startswith("{")]  # it logs as well
    times = json.loads(answer)
    return [
        Sample("swe_rex_local_ms", "SWE-ReX, local deployment, ms", tuple(times["local"])),
        Sample("swe_rex_http_ms", "SWE-ReX, its server over HTTP, ms", tuple(times["http"])),
        Figure("swe_rex_failed", "SWE-ReX, commands failed", times["failed"]),
    ]


def _environment(may_install: bool) -> Path:
    """The python of an environment that holds SWE-ReX; made at the first time."""
    home = CACHE / SWE_REX.replace("==", "-")
    python, mark = home / "bin" / "python", home / "complete"
    if not mark.exists():
        if not may_install:
            raise RuntimeError(f"{SWE_REX} is not installed: a run without --quick does that")
        say(f"SWE-ReX: installs {SWE_REX} into {home}")
        venv.create(home, with_pip=True, clear=True)
        _run([python, "-m", "pip", "install", "--quiet", SWE_REX, *NEEDS], os.environ)
        mark.touch()
    return python


def _run(line: list, environment: Mapping[str, str]) -> str:
    """What it prints. RuntimeError, with its last words, if it fails."""
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"{Path(line[0]).name} ended with {done.returncode}: {words}")
    return done.stdout
