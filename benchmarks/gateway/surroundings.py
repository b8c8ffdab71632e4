"""Where figures were measured."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("fastapi", "starlette", "uvicorn", "pydantic", "tokenizers", "transformers", "jax")
MIB = 1 << 20


def describe() -> dict[str, Any]:
    return {"hardware": _hardware(), "versions": _versions()}


def _hardware() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory,
        # Of other programs, too, which make times longer.
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "linux": platform.release()}
    return found | {name: metadata.version(name) for name in LIBRARIES}
