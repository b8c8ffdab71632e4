"""Starts that nobody waits for: ROCK's client asks again and again how they do."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from ale_jax.sandbox.pool.api import StartRequest, State, Status
from ale_jax.sandbox.service.caller import Caller

MAX_STARTS = 10_000
ABOUT_IMAGE = re.compile(r"image|manifest", re.IGNORECASE)
WAITING, RUNNING = ("waiting", "waiting"), ("running", "under way")


@dataclasses.dataclass(frozen=True)
class Start:
    """One that was asked for. task: ends with the sandbox's status, or with why there is none."""

    tenant: str
    request: StartRequest
    task: asyncio.Task[Status]


class Starts:
    """The last MAX_STARTS of them by id, for one event loop."""

    def __init__(self):
        self._starts: OrderedDict[str, Start] = OrderedDict()

    def begin(self, by: Caller, request: StartRequest) -> None:
        """Errors: ValueError if that id is being started already."""
        known = self._starts.get(request.id)
        if known and not known.task.done():
            raise ValueError(f"sandbox_id {request.id!r:.140} is being started")
        task = asyncio.ensure_future(by.start(request))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # told later
        self._starts[request.id] = Start(by.tenant.name, request, task)
        while len(self._starts) > MAX_STARTS:
            self._starts.popitem(last=False)

    def find(self, by: Caller, id: str) -> Start | None:
        """The start of a sandbox of theirs that is not there (yet)."""
        start = self._starts.get(id)
        if start is None or not (by.tenant.admin or start.tenant == by.tenant.name):
            return None
        if start.task.done() and not start.task.cancelled() and not start.task.exception():
            return None
        return start

    async def cancel(self, start: Start) -> None:
        """Gives up one that is under way."""
        start.task.cancel()
        await asyncio.wait([start.task])


def phases_of_start(start: Start) -> dict[str, Any]:
    """ROCK's phases of a sandbox that is not there (yet), with the reason if it never will."""
    if not start.task.done():
        return _phases(RUNNING, WAITING)
    error = "cancelled" if start.task.cancelled() else str(start.task.exception())
    image = start.request.labels["rock.image"]
    if ABOUT_IMAGE.search(error):
        return _phases(("failed", f"Failed to pull image {image}: {error}"), WAITING)
    return _phases(("success", "there"), ("failed", f"Failed to start {image}: {error}"))


def described(status: Status) -> dict[str, Any]:
    """A sandbox of the pool as ROCK's SandboxStatusResponse."""
    up = status.state is State.RUNNING
    run = ("success", "running") if up else ("failed", f"{status.state}: {status.cause}")
    return {
        **_described(status.id, status.spec, status.labels),
        "status": _phases(("success", "there"), run),
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


def described_start(start: Start) -> dict[str, Any]:
    request = start.request
    return {
        **_described(request.id, request.spec, request.labels),
        "status": phases_of_start(start),
        "is_alive": False,
        "state": "pending",
        "host_name": "",
    }


def _described(id: str, spec, labels) -> dict[str, Any]:
    return {
        "sandbox_id": id,
        "image": labels.get("rock.image", spec.image),
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
