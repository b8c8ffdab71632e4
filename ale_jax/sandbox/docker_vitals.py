"""The vitals of a container whose runner is not visible here, because its daemon is on another
machine or it has a kernel of its own."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import docker
import requests
from docker.errors import DockerException

from ale_jax.sandbox.vitals import Vitals

FULL = 0.9  # share of all CPUs from which on their users wait for each other


class ContainerVitals:
    """As seen by the daemon: the runner counts as waiting for a CPU while its container uses up its
    quota or all CPUs. What the runner itself has used cannot be told apart, and counts as nothing.
    """

    def __init__(self, api: docker.APIClient, container: str):
        self._api, self._container = api, container
        self._last: Vitals | None = None
        self._before: tuple[float, dict[str, Any]] | None = None
        self._asking: asyncio.Future[None] | None = None

    def see(self) -> Vitals | None:
        """The latest answer of the daemon, which is then asked again in the background; None before
        its first answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().run_in_executor(None, self._ask)
        return self._last

    def _ask(self) -> None:
        try:
            paused = self._api.inspect_container(self._container)["State"]["Paused"]
            cpu = self._api.stats(self._container, stream=False, one_shot=True)["cpu_stats"]
        except (DockerException, requests.RequestException, KeyError):
            self._last = None  # as long as the daemon does not answer, the runner is not visible
            return
        at, before = time.monotonic(), self._before
        self._before = at, cpu
        busy = before is not None and _is_contended(before[1], cpu, at - before[0])
        self._last = Vitals(runnable=busy and not paused, stopped=paused, cpu_seconds=0.0)


def _is_contended(before: dict[str, Any], now: dict[str, Any], seconds: float) -> bool:
    def grown(group: str, name: str) -> int:
        return now[group].get(name, 0) - before[group].get(name, 0)

    if grown("throttling_data", "throttled_periods"):
        return True
    used = grown("cpu_usage", "total_usage") / 1e9
    return used >= FULL * now.get("online_cpus", 1) * seconds
