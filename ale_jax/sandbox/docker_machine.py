"""A running container, with what belongs to it on the host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import Mount

from ale_jax.sandbox.booting import user_id
from ale_jax.sandbox.host_ids import HostId
from ale_jax.sandbox.link import DockerLink
from ale_jax.sandbox.runner.usage import Usage
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.vitals import Vitals, read_vitals

FULL = 0.9  # share of all CPUs from which on their users wait for each other
TROUBLE = (DockerException, requests.RequestException, OSError)

log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """A container to be started. mounts: for the runner's socket; empty if the daemon is elsewhere.
    user: the id of the agent, which no other container has; None for the usual one."""

    spec: SandboxSpec
    labels: Mapping[str, str]
    mounts: list[Mount]
    user: HostId | None

    @property
    def uid(self) -> int:
        return self.user.number if self.user else user_id(self.spec)

    def release(self) -> None:
        if self.user:
            self.user.release()


class DockerMachine:
    """A running container and the attached streams of its runner."""

    def __init__(
        self, api: docker.APIClient, container: str, attached, link: DockerLink, plan: Plan
    ):
        self.link = link
        self._api, self._container, self._plan = api, container, plan
        self._attached = attached  # owns the connection
        self._from_daemon = ContainerVitals(api, container)

    async def alive(self) -> bool:
        return await asyncio.to_thread(self._is_running)

    def vitals(self) -> Vitals | None:
        pid = self.link.runner_pid
        return read_vitals(pid) if pid else self._from_daemon.see()

    def usage(self) -> Usage:
        return {}  # the runner reads the container's cgroups, even if the daemon is remote

    def last_words(self) -> str:
        return self.link.stderr.decode("utf-8", "replace")

    async def destroy(self) -> None:
        self.link.fail("the sandbox is closed")
        await asyncio.to_thread(self._remove)

    def _is_running(self) -> bool:
        try:
            return self._api.inspect_container(self._container)["State"]["Running"]
        except TROUBLE:  # the container or the daemon is gone
            return False

    def _remove(self) -> None:
        try:
            remove_container(self._api, self._container)
            self._plan.release()
        except TROUBLE as error:
            log.warning("container %s is left to the reaper: %s", self._container[:12], error)
        self._attached.close()


def remove_container(api: docker.APIClient, container: str) -> None:
    with contextlib.suppress(NotFound):
        try:
            api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code != 409:  # 409: its removal is already in progress
                raise


class ContainerVitals:
    """The vitals of a container whose runner is not visible here, because its daemon is on another
    machine or it has a kernel of its own.

    As seen by the daemon: the runner counts as waiting for a CPU while its container uses up its
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
