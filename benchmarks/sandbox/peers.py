"""The same command in SWE-ReX, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

from benchmarks.sandbox.findings import Figure, Finding, Sample, say
from benchmarks.sandbox.plan import Plan

SWE_REX = "swe-rex==1.4.0"
NEEDS = ("aiohttp",)  # missing from its package's requirements
SCRIPT = Path(__file__).with_name("swe_rex_commands.py")
RUN_S = 900.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ale-jax", "benchmarks")
HOME = CACHE / SWE_REX.replace("==", "-")
MARK = "complete"  # written last


def probe(plan: Plan) -> str | None:
    """Why SWE-ReX cannot be measured, or None."""
    if plan.installs_peers or (HOME / MARK).exists():
        return None
    return f"{SWE_REX} is not installed; a run without --quick installs it into {HOME}"


def swe_rex(plan: Plan) -> list[Finding]:
    """Errors: RuntimeError if it cannot be installed, or does not run."""
    python = _environment()
    say(f"SWE-ReX: {plan.peer_commands} commands in process, and over HTTP")
    # With other terminals its sessions are unreliable.
    said = _run([python, SCRIPT, str(plan.peer_commands)], os.environ | {"TERM": "dumb"})
    (answer,) = [line for line in said.splitlines() if line.startswith("{")]  # without its logs
    times = json.loads(answer)
    return [
        Sample("swe_rex_local_ms", "SWE-ReX, local deployment, ms", tuple(times["local"])),
        Sample("swe_rex_http_ms", "SWE-ReX, its server over HTTP, ms", tuple(times["http"])),
        Figure("swe_rex_failed", "SWE-ReX, commands failed", times["failed"]),
    ]


def _environment() -> Path:
    """The Python of an environment with SWE-ReX, which is created at first use."""
    python = HOME / "bin" / "python"
    if not (HOME / MARK).exists():
        say(f"SWE-ReX: installs {SWE_REX} into {HOME}")
        venv.create(HOME, with_pip=True, clear=True)
        _run([python, "-m", "pip", "install", "--quiet", SWE_REX, *NEEDS], os.environ)
        (HOME / MARK).touch()
    return python


def _run(line: list, environment: Mapping[str, str]) -> str:
    """Returns what it prints. RuntimeError, with the last line of its errors, if it fails."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # In a new session, so that its child processes can be killed with it.
    with subprocess.Popen(line, env=environment, start_new_session=True, **streams) as process:
        try:
            said, words = process.communicate(timeout=RUN_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        last = (words.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{Path(line[0]).name} ended with {process.returncode}: {last}")
    return said
