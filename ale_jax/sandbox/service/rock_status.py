"""How a sandbox stands, in ROCK's words (its SandboxStatusResponse)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ale_jax.sandbox.api import ImageMissing
from ale_jax.sandbox.pool.api import StartRequest, State, Status
from ale_jax.sandbox.service.rock_spec import IMAGE
from ale_jax.sandbox.spec import SandboxSpec

WAITING, RUNNING = ("waiting", "waiting"), ("running", "under way")
PULLED = ("success", "there")


def of_running(id: str, status: Status) -> dict[str, Any]:
    """One that has been up."""
    up = status.state is State.RUNNING
    run = ("success", "running") if up else ("failed", f"{status.state}: {status.cause}")
    return {
        **_described(id, status.spec, status.labels),
        "status": _phases(PULLED, run),
        "is_alive": up,
        "state": "running" if up else "stopped",
        "host_name": status.node,
        "start_time": _time(status.started_at),
        "create_time": _time(status.history[0].at) if status.history else None,
        "state_history": [
            {
                "from_state": before.state,
                "to_state": after.state,
                "event": after.detail or str(after.state),
                "timestamp": _time(after.at),
            }
            for before, after in zip(status.history, status.history[1:])
        ],
    }


def of_starting(id: str, request: StartRequest, error: BaseException | None) -> dict[str, Any]:
    """One that is not up yet, or never will be: `error` says why."""
    if error is None:
        phases = _phases(RUNNING, WAITING)
    elif isinstance(error, ImageMissing):
        text = f"Failed to pull image {request.labels[IMAGE]}: {error}"
        phases = _phases(("failed", text), WAITING)
    else:
        text = f"Failed to start {request.labels[IMAGE]}: {error or 'it was stopped'}"
        phases = _phases(PULLED, ("failed", text))
    return {
        **_described(id, request.spec, request.labels),
        "status": phases,
        "is_alive": False,
        "state": "pending" if error is None else "stopped",
        "host_name": "",
    }


def _described(id: str, spec: SandboxSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "sandbox_id": id,
        "image": labels.get(IMAGE, spec.image),
        "cpus": spec.cpus,
        "memory": f"{spec.memory_mb}m",
        "disk": f"{spec.files_mb}m",
        "host_ip": "",
        "port_mapping": {},
        "user_id": labels.get("tenant"),
    }


def _phases(*states: tuple[str, str]) -> dict[str, Any]:
    names = ("image_pull", "docker_run")
    return {n: {"status": s, "message": m} for n, (s, m) in zip(names, states, strict=True)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
